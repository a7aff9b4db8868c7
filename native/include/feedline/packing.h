// SPDX-License-Identifier: Apache-2.0
// Documents into rows of one length: which row each goes to, and where in it. Only lengths are looked at.
//
// A row has `row` places. Its *room* is what is left of them; documents fill it from the front, so that a document's
// offset is what was taken before it. Rows are numbered as they are opened. Pure functions of their arguments, exact on
// every machine, and never to change, as positions in saved states depend on them.
//
// `order` is a permutation of 0..n-1 (see first_repeated), or null for 0, 1, 2, ... Lengths are checked (see
// first_bad_length), 1 <= row <= kLongestRow, n <= kMostDocuments. Outputs have n elements; the result is the number of
// rows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

constexpr std::int64_t kLongestRow = std::int64_t{1} << 24;
constexpr std::size_t kMostDocuments = (std::size_t{1} << 31) - 1;

// First i with lengths[i] outside 1..row, or -1. O(n).
std::ptrdiff_t first_bad_length(const std::int64_t* lengths, std::size_t n, std::int64_t row);

// First i with order[i] outside 0..n-1 or equal to an earlier one; -1 for a permutation. O(n) time, n bits of memory.
template <class T>
std::ptrdiff_t first_repeated(const T* order, std::size_t n);

// Best-fit decreasing: documents by falling length, equal ones as `order` has them. Each goes into the row with the
// least room that holds it; of rows with equal room, into the one that came to it last. Without such a row it opens one.
//
// The number of rows, and how many rows have how much room, depend only on how often each length occurs: `order`
// decides which documents share a row, nothing else. There are at most 11/9 of the fewest possible + 4 rows (Johnson,
// Demers, Ullman, Garey and Graham, 1974).
//
// O(n + row): a document costs at most some ten words of a bit tree. About 4 n + 4 rows + 8 row bytes of memory.
template <class T>
std::int64_t best_fit(const std::int64_t* lengths, const T* order, std::size_t n, std::int64_t row,
                      std::int64_t* row_of, std::int64_t* offset);

// First-fit: documents as `order` has them, each into the first row that has room for it. The number of rows depends on
// `order`. O(n log rows) time, at most 16 rows bytes of memory.
template <class T>
std::int64_t first_fit(const std::int64_t* lengths, const T* order, std::size_t n, std::int64_t row,
                       std::int64_t* row_of, std::int64_t* offset);

// First i with row_of[i] outside 0..rows-1, or -1. O(n).
std::ptrdiff_t first_bad_row(const std::int64_t* row_of, std::size_t n, std::int64_t rows);

// What each row holds: documents[starts[r] .. starts[r + 1]) are those with row_of = r, by rising offset, equal ones by
// number. starts has rows + 1 elements, documents n. row_of is checked. O(rows + n log of the documents in a row).
void row_contents(const std::int64_t* row_of, const std::int64_t* offset, std::size_t n, std::int64_t rows,
                  std::int64_t* starts, std::int64_t* documents);

// Minibatches: where the runs of sequences end that hold at most `room` samples each, the first from index `at`. Sequence
// i has the samples ends[i] .. ends[i + 1]. A run stops as soon as it is full; a single longer sequence is a run, the
// first one only if `alone`. No run passes `limit` <= n, and none follows one that reaches it. At most `most` ends are
// written to `out`; returns their number. O(log of the sequences in a run) each.
std::size_t run_ends(const std::int64_t* ends, std::size_t at, std::size_t limit, std::int64_t room, bool alone,
                     std::size_t most, std::int64_t* out);

}  // namespace feedline
