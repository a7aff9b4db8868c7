// SPDX-License-Identifier: Apache-2.0
// Sums of arrays, and copies of each sum to several places, in one pass over memory.
//
// A *merge* reads `num_in` arrays of `count` elements, adds them from the first to the last (float addition in
// this order, so results are the same to the bit whatever the number of threads), and writes the sum to
// `num_out` arrays. With one input it is a copy. An output may be one of the inputs, or occur twice;
// arrays that overlap in any other way give mixed values.
//
// Cost: each input is read once and each output written once: a block of the sum stays in a cache
// between the additions and the copies. Large outputs bypass the caches if the processor supports
// it, as nobody reads them before they are evicted.
#pragma once

#include <cstddef>

namespace feedline {

template <class T>
struct Merge {
    const T* const* in;
    std::size_t num_in;  // at least 1
    T* const* out;
    std::size_t num_out;
    std::size_t count;
};

// Merges elements [begin, end) of all merges laid end to end: threads share the work by sharing the range.
// `streaming`: write past the caches. For T float and double.
template <class T>
void merge(const Merge<T>* merges, std::size_t num_merges, std::size_t begin, std::size_t end, bool streaming);

extern template void merge<float>(const Merge<float>*, std::size_t, std::size_t, std::size_t, bool);
extern template void merge<double>(const Merge<double>*, std::size_t, std::size_t, std::size_t, bool);

}  // namespace feedline
