// SPDX-License-Identifier: Apache-2.0
// Packs documents into rows of one length: the row of each, and its offset there. Depends on nothing but lengths.
//
// A row has `row` places. Its *room* is the number of free ones. Documents fill it from the front, so a document's
// offset is the number of places taken before it. Rows are numbered as they are opened. All are pure functions of their
// arguments, with the same results on every machine. They never change, as positions in saved states depend on them.
//
// `order` is a permutation of 0..n-1 (first_repeated checks it), or null for 0, 1, 2, ... The caller has checked
// lengths (first_bad_length). 1 <= row <= kMaxRow, n <= kMaxDocuments. Outputs have n elements, and the number of rows
// is returned. Throw bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

constexpr std::int64_t kMaxRow = std::int64_t{1} << 24;
constexpr std::size_t kMaxDocuments = (std::size_t{1} << 31) - 1;

// First i with lengths[i] outside 1..row, or -1. O(n).
std::ptrdiff_t first_bad_length(const std::int64_t* lengths, std::size_t n, std::int64_t row);

// First i with order[i] outside 0..n-1 or equal to an earlier one; -1 for a permutation. O(n) time, n bits of memory.
template <class T>
std::ptrdiff_t first_repeated(const T* order, std::size_t n);

// Best-fit decreasing: documents by decreasing length, equal ones in `order`. Each goes into the row with the least
// room that holds it, and of rows with equal room into the one that last changed. If no row holds it, it opens one.
//
// The number of rows, and how many rows have how much room, depend only on how often each length occurs. `order`
// decides only which documents share a row. There are at most 11/9 of the fewest possible + 4 rows (Johnson, Demers,
// Ullman, Garey and Graham, 1974).
//
// O(n + row) time: a document reads at most some ten words of a bit tree. About 4 n + 4 rows + 8 row bytes of memory.
template <class T>
std::int64_t best_fit(const std::int64_t* lengths, const T* order, std::size_t n, std::int64_t row,
                      std::int64_t* row_of, std::int64_t* offset);

// First-fit: documents in `order`, each into the first row that has room for it. The number of rows depends on `order`.
// O(n log rows) time, at most 16 bytes of memory per row.
template <class T>
std::int64_t first_fit(const std::int64_t* lengths, const T* order, std::size_t n, std::int64_t row,
                       std::int64_t* row_of, std::int64_t* offset);

// First i with row_of[i] outside 0..rows-1, or -1. O(n).
std::ptrdiff_t first_bad_row(const std::int64_t* row_of, std::size_t n, std::int64_t rows);

// Lists the documents of each row: documents[starts[r] .. starts[r + 1]) have row_of = r, ordered by offset, then by
// number. starts has rows + 1 elements, documents n. The caller has checked row_of. O(rows + n log of the documents in
// a row).
void row_contents(const std::int64_t* row_of, const std::int64_t* offset, std::size_t n, std::int64_t rows,
                  std::int64_t* starts, std::int64_t* documents);

// Minibatches: the ends of runs of sequences with at most `room` samples each, the first from index `at`. Sequence i
// has the samples ends[i] .. ends[i + 1]. A run stops as soon as it is full. A single longer sequence is a run, for the
// first run only if `alone`, without which that run is empty. No run goes beyond `limit` <= n, and none follows one
// that ends there. Writes at most `max_runs` ends to `out`, and returns their number. O(log of the sequences in a run)
// each.
std::size_t run_ends(const std::int64_t* ends, std::size_t at, std::size_t limit, std::int64_t room, bool alone,
                     std::size_t max_runs, std::int64_t* out);

}  // namespace feedline
