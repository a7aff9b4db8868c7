// SPDX-License-Identifier: Apache-2.0
// Rows of one length from pieces of documents: their tokens, and the arrays that models need to separate the pieces.
//
// A *piece* is a document, or a part of one, at `offset` of a row. Pieces are ordered by row and offset, and do not
// overlap. Places without a piece are padding. `count` rows of `row` places are one after another, so place t of row r
// is place r * row + t of all. The caller has checked the pieces (first_bad_piece), and does not change them during
// calls.
//
// The outputs:
//   tokens        as they are, `pad` in padding
//   labels        the token after this one in its document, `ignore` for a document's last token and in padding
//   segment       1, 2, ... by piece within the row, 0 in padding
//   positions     of a token in its document, 0 in padding
//   cu_seqlens    the first place of every sequence, and the end, counted over all rows, as kernels of attention for
//                 sequences of various lengths take them. Every stretch of padding is a sequence, so that each place
//                 belongs to one
//
// Reads tokens once and writes each output once. Tokens may be in a mapped file, so fills run under `guarded`
// (guard.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

struct Pieces {
    const std::int64_t* row;        // 0..count-1, never decreasing
    const std::int64_t* offset;     // of its first token in the row
    const std::int64_t* start;      // of its first token in `tokens`
    const std::int64_t* length;     // at least 1
    const std::int64_t* position;   // of its first token in the document; null: 0 for all
    const std::uint8_t* goes_on;    // not 0: tokens[start + length] is the next token of the document; null: 0 for all
    std::size_t size;
};

enum class PieceRule { none, row, offset, length, start, position };

// The first piece that breaks a rule, for rows of `row` places and `tokens` tokens: row in order, offset not before the
// end of the piece before, length within the row, start within the tokens, position + length at most 2^31. O(pieces).
struct PieceFault {
    std::size_t piece;
    PieceRule rule;  // none: all pieces are good
};
PieceFault first_bad_piece(const Pieces& pieces, std::int64_t count, std::int64_t row, std::int64_t tokens);

// Sets first[r] to the first piece of row r, and sequences[r] to the number of sequences before row r, padding
// included, so cu_seqlens has sequences[count] + 1 elements. Both have count + 1 elements. Returns the length of the
// longest sequence, 0 without rows. O(pieces + count).
std::int64_t plan_rows(const Pieces& pieces, std::int64_t count, std::int64_t row, std::int64_t* first,
                       std::int64_t* sequences);

// The inputs and outputs of fill_rows, all the caller's.
struct PackedRows {
    Pieces pieces;
    const std::int64_t* first;      // as plan_rows sets them
    const std::int64_t* sequences;
    std::int64_t count, row;        // count * row < 2^31
    const void* tokens;             // of type In
    std::int64_t pad;               // fits Out
    std::int64_t ignore;
    void* out;                      // of type Out
    std::int64_t* labels;           // null: none are written
    std::int32_t* segment;
    std::int32_t* positions;
    std::int32_t* cu_seqlens;
};

// Fills rows [begin, end), so that threads can share them. In: an integer type up to int64. Out: the same, or int64.
template <class In, class Out>
void fill_rows(const PackedRows& job, std::int64_t begin, std::int64_t end);

// Fills rows [begin, end) of another stream of the same documents. Values have value_bytes. Padding is `fill`, an
// element of element_bytes, of which value_bytes is a multiple.
void fill_values(const Pieces& pieces, const std::int64_t* first, std::int64_t row, const std::byte* values,
                 std::size_t value_bytes, const std::byte* fill, std::size_t element_bytes, std::byte* out,
                 std::int64_t begin, std::int64_t end);

}  // namespace feedline
