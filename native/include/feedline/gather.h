// SPDX-License-Identifier: Apache-2.0
// Copies of chosen sequences out of resident chunks, in any order: dense rows, ragged rows, CSR rows, and
// ragged rows padded to one length.
//
// A *stream* of a chunk is described by a source; sources of one stream lie in an array indexed by slot. A
// *pick* is (slot, index of a sequence in that slot's chunk). Offsets part rows into sequences: sequence i
// owns rows offsets[i] .. offsets[i+1]-1; a null `offsets` means one row a sequence. All sizes in bytes are
// called so, everything else counts rows, sequences or stored values. The caller allocates every output.
//
// Who checks what: offsets and indptr are checked whole by `first_fault` when a chunk arrives, picks by
// `first_bad_pick` before any copy. The plan_* functions check again what they follow (three operations a
// sequence), so a mapped file or an array that changed in between gives an error, never a wild read. Entries are
// checked where they have been copied to (`first_bad_index`, `first_bad_bool`), as those in a file may change. What
// may lie in a mapped file is read under `guarded` (guard.h) by the caller: no kernel needs an end of its own.
//
// Cost: one pass over the picks to plan, one over the output to copy; memory reads are prefetched some
// sequences ahead, since random rows wait for memory and not for the processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace feedline {

// How rows lie that are views with strides: each is runs of bytes, one at every place of its axes.
struct RowLayout {
    struct Axis {
        std::size_t count;
        std::ptrdiff_t stride;
    };
    std::ptrdiff_t row_stride;  // from row to row, in bytes; rows may overlap
    std::size_t run_bytes;
    std::vector<Axis> axes;  // outermost first; without any a row is one run

    // Of rows of this shape, given the strides of each axis, the first of which leads from row to row; each in bytes.
    // Axes that lie without gaps are taken together.
    static RowLayout of(const std::size_t* shape, const std::ptrdiff_t* strides, std::size_t dims,
                        std::size_t item_bytes);
};

struct DenseSource {
    const std::byte* rows = nullptr;
    const std::int64_t* offsets = nullptr;
    std::int64_t num_rows = 0;
    const RowLayout* layout = nullptr;  // null: rows follow one another without gaps. Never with offsets
};

struct SparseSource {
    const std::int64_t* indptr = nullptr;  // num_rows + 1
    const std::int32_t* indices = nullptr;
    const std::byte* values = nullptr;
    const std::int64_t* offsets = nullptr;
    std::int64_t num_rows = 0;
    std::int64_t num_values = 0;
};

struct Picks {
    const std::uint32_t* slots;  // null: slot 0 for all
    const std::int64_t* index;
    std::size_t count;
};

// First i with bounds[i] > bounds[i+1], or 0 if bounds[0] != 0, or n if bounds[n] != end; -1 if bounds rise
// from 0 to end. bounds has n+1 entries. O(n), vectorised.
std::ptrdiff_t first_fault(const std::int64_t* bounds, std::size_t n, std::int64_t end);

// Whether bounds[0 .. n) never fall, from at least `first` to exactly `last`; for n = 0, whether first = last.
// O(n), vectorised.
bool rises(const std::int64_t* bounds, std::size_t n, std::int64_t first, std::int64_t last);

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

// One row a sequence, picks [begin, end) of all: row i of out (row_bytes each) = the picked row.
void copy_rows(const Picks& picks, const DenseSource* sources, std::size_t row_bytes, std::byte* out,
               std::size_t begin, std::size_t end);

// The same where some of the sources have a layout. Rows of one run cost what contiguous ones cost, others a call for
// each run.
void copy_strided_rows(const Picks& picks, const DenseSource* sources, std::size_t row_bytes, std::byte* out,
                       std::size_t begin, std::size_t end);

// Ragged rows in two steps, since the output's size is known only after the first: `plan_ragged` writes
// out_offsets[count + 1] and from[count]; its result is -1, or the first pick whose source offsets are
// impossible. `copy_ragged` then copies sequences [begin, end).
std::ptrdiff_t plan_ragged(const Picks& picks, const DenseSource* sources, std::size_t row_bytes,
                           const std::byte** from, std::int64_t* out_offsets);
void copy_ragged(const std::byte* const* from, const std::int64_t* out_offsets, std::size_t row_bytes,
                 std::byte* out, std::size_t begin, std::size_t end);

// CSR rows, in two steps likewise. out_offsets may be null if no picked chunk has offsets.
struct SparseRun {
    const std::int64_t* indptr;  // at the sequence's first row
    const std::int32_t* indices;
    const std::byte* values;
    std::int64_t first_value;  // of the source, what *indptr said when planned
    std::int64_t num_values;
    std::int64_t out_row, out_value;  // where the sequence goes
};
struct SparseTotals {
    std::int64_t rows, values;
    std::ptrdiff_t fault;  // -1, or the first pick whose source offsets or indptr are impossible
};
SparseTotals plan_sparse(const Picks& picks, const SparseSource* sources, std::size_t value_bytes,
                         SparseRun* runs, std::int64_t* out_offsets);
// runs[count] must be the end: out_row and out_value the totals (plan_sparse writes it; runs has count + 1).
void copy_sparse(const SparseRun* runs, std::size_t value_bytes, std::int64_t* out_indptr,
                 std::int32_t* out_indices, std::byte* out_values, std::size_t begin, std::size_t end);

// Place of the first of indices[begin .. end) that is not below `width` (at most 2^31) or is negative, or `end`.
// O(end - begin), vectorised.
std::size_t first_bad_index(const std::int32_t* indices, std::size_t begin, std::size_t end,
                            std::uint32_t width);
// Likewise of bytes that are to be bools: the first that is neither 0 nor 1.
std::size_t first_bad_bool(const std::byte* bytes, std::size_t begin, std::size_t end);

// What is read again after a copy from a mapped file: eight bytes at its end, which are gone (or zeros, within the
// last page) once it was cut. A file that is cut in the middle of a page reads as zeros up to that page's end.
struct Seal {
    const std::byte* bytes;
    std::uint64_t expected;
};
// The bytes of the first of n seals that is broken, or null.
const std::byte* first_broken(const Seal* seals, std::size_t n);
std::uint64_t read_seal(const std::byte* bytes);

// Packed sequences to one length: out[i] = rows of sequence i, then `fill` (element_bytes) to `length` rows;
// mask[i][t] = 1 where a row is real. row_bytes is a multiple of element_bytes; offsets are checked and no
// sequence is longer than length. O(n * length).
void pad(const std::byte* rows, const std::int64_t* offsets, std::size_t n, std::size_t row_bytes,
         const std::byte* fill, std::size_t element_bytes, std::size_t length, std::byte* out, bool* mask);

}  // namespace feedline
