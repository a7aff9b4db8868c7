// SPDX-License-Identifier: Apache-2.0
// Sums of arrays, and copies of each sum to several arrays, in one pass over memory.
//
// A *merge* reads `num_in` arrays of `count` elements, adds them from the first to the last, and writes the sum to
// `num_out` arrays. Float additions are in this order, so results have the same bits for any number of threads. With
// one input it is a copy. An output may be one of the inputs, or occur twice. Arrays that overlap in any other way get
// mixed values. All arrays are the caller's.
//
// Cost: each input is read once and each output written once, as a block of the sum stays in a cache between the
// additions and the copies. Large outputs can bypass the caches, from which they would be evicted before they are read.
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

// Merges elements [begin, end) of all merges, counted end to end, so that threads can share them. `streaming`: whether
// to bypass the caches, if the processor can. For T float and double.
template <class T>
void merge(const Merge<T>* merges, std::size_t num_merges, std::size_t begin, std::size_t end, bool streaming);

extern template void merge<float>(const Merge<float>*, std::size_t, std::size_t, std::size_t, bool);
extern template void merge<double>(const Merge<double>*, std::size_t, std::size_t, std::size_t, bool);

}  // namespace feedline
