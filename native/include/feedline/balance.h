// SPDX-License-Identifier: Apache-2.0
// The sequences of one minibatch divided among ranks, so that every rank has about as much work.
//
// Longest processing time first (Graham, 1969): sequences by falling work, equal ones by number. Each goes to the rank
// with the least work so far, the lowest of several. A pure function of its arguments, exact on every machine, and
// never to change, as positions in saved states depend on it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

constexpr std::size_t kMaxBalanced = (std::size_t{1} << 31) - 1;

// First i with work[i] < 0, or where the sum of work[0 .. i] passes the largest int64. -1 if there is none. O(n).
std::ptrdiff_t first_bad_work(const std::int64_t* work, std::size_t n);

// Writes the rank of each of n <= kMaxBalanced sequences to `owner`. work is checked (see first_bad_work). ranks >= 1.
// counts: the number of sequences of each rank, which sum to n. Null: any numbers.
//
// O(n (bytes of the largest work + log ranks)) time, 24 n + 24 ranks bytes of memory.
void balance(const std::int64_t* work, std::size_t n, const std::int64_t* counts, std::size_t ranks,
             std::int32_t* owner);

}  // namespace feedline
