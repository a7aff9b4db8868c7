// SPDX-License-Identifier: Apache-2.0
// Copies of picked sequences out of resident chunks, in any order: dense rows, ragged rows, CSR rows, byte strings,
// and ragged rows padded to one length. Byte strings are CSR rows of bytes without indices.
//
// A *stream* of a chunk is described by a source. The sources of one stream are in an array indexed by slot. A *pick*
// is (slot, index of a sequence in that slot's chunk). Offsets split rows into sequences: sequence i owns rows
// offsets[i] .. offsets[i+1]-1. A null `offsets` means one row per sequence. Sizes in bytes have `bytes` in their
// names, all others count rows, sequences or stored values. The caller allocates every output.
//
// Checks: `first_bad_bound` checks offsets and indptr completely when a chunk is added, `first_bad_pick` checks picks
// before any copy. The plan_* functions check each bound again that they follow (three operations per sequence), so a
// mapped file or an array that changed in between causes an error, never a wild read. Entries are checked after they
// are copied (`first_bad_index`, `first_bad_bool`, `first_bad_text`), as entries in a file may change. The caller reads
// memory that may be a mapped file under `guarded` (guard.h), so kernels need not handle faults.
//
// Cost: one pass over the picks to plan, one over the output to copy. Memory is prefetched some sequences ahead, since
// random rows are bound by memory latency.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace feedline {

// The layout of rows that are strided views. A row consists of runs of bytes, one at every place of its axes.
struct RowLayout {
    struct Axis {
        std::size_t count;
        std::ptrdiff_t stride;
    };
    std::ptrdiff_t row_stride;  // from row to row, in bytes; rows may overlap
    std::size_t run_bytes;
    std::vector<Axis> axes;  // outermost first; none: a row is one run

    // The layout of rows. shape and strides: of `dims` axes, of which the first goes from row to row. Strides are in
    // bytes. Axes without gaps are merged.
    static RowLayout of(const std::size_t* shape, const std::ptrdiff_t* strides, std::size_t dims,
                        std::size_t item_bytes);
};

// Rows that are windows of `count` rows of a contiguous array. Row w has the rows of a sequence, rows firsts[w] to
// ends[w] - 1 of the array, at middles[w] + steps[k] for each k. Where the sequence has no such row, it has the nearest
// one or, if `zeros`, zeros. Arrays are borrowed.
struct RowWindows {
    const std::int64_t* middles = nullptr;
    const std::int64_t* firsts = nullptr;
    const std::int64_t* ends = nullptr;
    const std::int64_t* steps = nullptr;
    std::size_t count = 0;
    std::int64_t array_rows = 0;
    std::size_t array_row_bytes = 0;
    bool zeros = false;
    bool by_place = false;     // middles has a row for each k: middles[w * count + k], and there are no steps
    bool consecutive = false;  // steps ascend by 1

    // The window if it is one run of bytes, else null.
    const std::byte* run(const std::byte* array, std::int64_t w) const;
    // Copies a window. Arrays that have changed since they were checked cause zeros, never a wild read.
    void copy(const std::byte* array, std::int64_t w, std::byte* out) const;
};

// The first of n windows for which 0 <= first < end <= array_rows does not hold; n if it holds for all. O(n).
std::size_t first_bad_window(const RowWindows& windows, std::size_t n);

// The rows of a dense stream of one chunk. All pointers are borrowed.
struct DenseSource {
    const std::byte* rows = nullptr;
    const std::int64_t* offsets = nullptr;
    std::int64_t num_rows = 0;
    const RowLayout* layout = nullptr;  // null: rows are contiguous. Never with offsets
    const RowWindows* windows = nullptr;  // `rows` is the array of these. Never with a layout
};

// The CSR rows of a sparse stream of one chunk, or its byte strings. All pointers are borrowed.
struct SparseSource {
    const std::int64_t* indptr = nullptr;   // num_rows + 1, unless `spans`
    const std::int32_t* indices = nullptr;  // null for byte strings
    const std::byte* values = nullptr;
    const std::int64_t* offsets = nullptr;
    std::int64_t num_rows = 0;
    std::int64_t num_values = 0;
    bool spans = false;  // rows with gaps: indptr has begin and end of each row, 2 * num_rows. Never with offsets
};

// Picked sequences. The arrays are borrowed.
struct Picks {
    const std::uint32_t* slots;  // null: slot 0 for all
    const std::int64_t* index;
    std::size_t count;
};

// First i with bounds[i] > bounds[i+1], or 0 if bounds[0] != 0, or n if bounds[n] != end. -1 if the n+1 bounds ascend
// from 0 to end. O(n), vectorised.
std::ptrdiff_t first_bad_bound(const std::int64_t* bounds, std::size_t n, std::int64_t end);

// Whether bounds[0 .. n) ascend, from at least `first` to exactly `last`; for n = 0, whether first = last.
// O(n), vectorised.
bool ascends(const std::int64_t* bounds, std::size_t n, std::int64_t first, std::int64_t last);

// First i of n spans (begin, end) for which 0 <= begin <= end <= limit does not hold; n if it holds for all. O(n).
std::size_t first_bad_span(const std::int64_t* spans, std::size_t n, std::int64_t limit);

// First i with bounds[i + 1] - bounds[i] != lengths[i], or -1. O(n), vectorised.
std::ptrdiff_t first_uneven(const std::int64_t* bounds, const std::int32_t* lengths, std::size_t n);

// First pick outside the table of sequences per slot (0 for a vacant one), or -1. O(count), vectorised.
std::ptrdiff_t first_bad_pick(const Picks& picks, const std::int64_t* sequences, std::size_t num_slots);

// Whether any picked chunk has offsets. O(count).
template <class Source>
bool any_ragged(const Picks& picks, const Source* sources) {
    if (picks.slots == nullptr) return picks.count != 0 && sources[0].offsets != nullptr;
    bool ragged = false;
    for (std::size_t i = 0; i < picks.count; ++i) ragged |= sources[picks.slots[i]].offsets != nullptr;
    return ragged;
}

// One row per sequence, picks [begin, end) of all: row i of out (row_bytes each) = the picked row.
void copy_rows(const Picks& picks, const DenseSource* sources, std::size_t row_bytes, std::byte* out,
               std::size_t begin, std::size_t end);

// The same if some of the sources have a layout or windows. Rows of one run cost as much as contiguous ones, others one
// call per run.
void copy_strided_rows(const Picks& picks, const DenseSource* sources, std::size_t row_bytes, std::byte* out,
                       std::size_t begin, std::size_t end);

// Ragged rows in two steps, since the first determines the output's size. `plan_ragged` writes out_offsets[count + 1]
// and from[count], and returns -1, or the first pick whose source offsets are impossible. `copy_ragged` then copies
// sequences [begin, end).
std::ptrdiff_t plan_ragged(const Picks& picks, const DenseSource* sources, std::size_t row_bytes,
                           const std::byte** from, std::int64_t* out_offsets);
void copy_ragged(const std::byte* const* from, const std::int64_t* out_offsets, std::size_t row_bytes,
                 std::byte* out, std::size_t begin, std::size_t end);

// The second step if some of the sources have a layout or windows.
void copy_strided_ragged(const Picks& picks, const DenseSource* sources, const std::byte* const* from,
                         const std::int64_t* out_offsets, std::size_t row_bytes, std::byte* out, std::size_t begin,
                         std::size_t end);

// CSR rows, also in two steps. out_offsets may be null if no picked chunk has offsets. `runs` has count + 1 entries, of
// which plan_sparse sets out_row and out_value of the last one to the totals.
struct SparseRun {
    const std::int64_t* indptr;  // at the sequence's first row
    const std::int32_t* indices;
    const std::byte* values;
    std::int64_t first_value;  // of the source: *indptr when the copy was planned
    std::int64_t num_values;
    std::int64_t out_row, out_value;  // where the sequence goes
};
struct SparseTotals {
    std::int64_t rows, values;
    std::ptrdiff_t fault;  // -1, or the first pick whose source offsets or indptr are impossible
};
SparseTotals plan_sparse(const Picks& picks, const SparseSource* sources, std::size_t value_bytes,
                         SparseRun* runs, std::int64_t* out_offsets);
// Copies sequences [begin, end). out_indices is null for byte strings.
void copy_sparse(const SparseRun* runs, std::size_t value_bytes, std::int64_t* out_indptr,
                 std::int32_t* out_indices, std::byte* out_values, std::size_t begin, std::size_t end);

// Place of the first of indices[begin .. end) outside [0, width), width at most 2^31; `end` if there is none.
// O(end - begin), vectorised.
std::size_t first_bad_index(const std::int32_t* indices, std::size_t begin, std::size_t end,
                            std::uint32_t width);
// The same for bytes of bools: the first that is neither 0 nor 1.
std::size_t first_bad_bool(const std::byte* bytes, std::size_t begin, std::size_t end);
// The first of n strings that is not UTF-8 as RFC 3629 defines it (no surrogates, no overlong forms), or n. String i
// ends before text[ends[i]]. The first one begins at text[first], any other where the one before it ends. The caller
// has checked the ends. O(bytes). ASCII is checked 8 bytes at a time.
std::size_t first_bad_text(const std::byte* text, std::int64_t first, const std::int64_t* ends, std::size_t n);
// The place of the first byte in text[0 .. n) that violates UTF-8, or n.
std::size_t first_bad_utf8(const std::byte* text, std::size_t n);

// Eight bytes at the end of a mapped file, which are read again after a copy. If the file was truncated, they cannot be
// read, or are zeros: a file truncated in the middle of a page reads as zeros up to the end of that page.
struct Seal {
    const std::byte* bytes;
    std::uint64_t expected;
};
// The bytes of the first of n seals that no longer has the expected value, or null.
const std::byte* first_broken(const Seal* seals, std::size_t n);
// The eight bytes of a seal as they are now.
std::uint64_t read_seal(const std::byte* bytes);

// Pads packed sequences to one length: out[i] = rows of sequence i, then `fill` (element_bytes) to `length` rows.
// mask[i][t] = 1 where a row is real. row_bytes is a multiple of element_bytes. The caller has checked that offsets
// ascend and no sequence is longer than `length`. O(n * length).
void pad(const std::byte* rows, const std::int64_t* offsets, std::size_t n, std::size_t row_bytes,
         const std::byte* fill, std::size_t element_bytes, std::size_t length, std::byte* out, bool* mask);

}  // namespace feedline
