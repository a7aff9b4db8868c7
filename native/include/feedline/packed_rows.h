// SPDX-License-Identifier: Apache-2.0
// Rows of one length from pieces of documents: what is read of each piece, and what tells pieces apart.
//
// A *piece* is a document, or a part of one, at `offset` of a row. Pieces come by row and offset, and do not overlap;
// what they leave free is padding. `count` rows of `row` places lie one after another, so that place t of row r is place
// r row + t of all. Pieces are checked (see first_bad_piece) and stay as they are during the calls.
//
// What is written:
//   tokens        as they are, `pad` in padding
//   labels        the token after this one in its document; `ignore` behind a document's last, and in padding
//   segment       1, 2, ... by piece within the row, 0 in padding
//   positions     of a token in its document, 0 in padding
//   cu_seqlens    the first place of every sequence, and the end, counted over all rows, as the kernels of attention take
//                 them for sequences of various lengths. Every stretch of padding is a sequence of its own, so that all
//                 places belong to one
//
// Reads tokens once and writes each output once. Tokens may lie in a mapped file: run fills under `guarded` (guard.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

struct Pieces {
    const std::int64_t* row;        // 0..count-1, never falls
    const std::int64_t* offset;     // of its first token in the row
    const std::int64_t* start;      // of its first token in `tokens`
    const std::int64_t* length;     // at least 1
    const std::int64_t* position;   // of its first token in the document; null: 0 for all
    const std::uint8_t* goes_on;    // not 0: tokens[start + length] follows it in the document; null: 0 for all
    std::size_t size;
};

enum class PieceRule { none, row, offset, length, start, position };

// The first piece that breaks a rule, for rows of `row` places and `tokens` tokens: row in order, offset behind the
// piece before, length within the row, start within the tokens, position + length at most 2^31. O(pieces).
struct PieceFault {
    std::size_t piece;
    PieceRule rule;  // none: all pieces are good
};
PieceFault first_bad_piece(const Pieces& pieces, std::int64_t count, std::int64_t row, std::int64_t tokens);

// first[r]: the first piece of row r. sequences[r]: how many sequences, padding included, come before row r, so that
// cu_seqlens has sequences[count] + 1 elements. Both have count + 1 elements. Returns the length of the longest
// sequence, 0 without rows. O(pieces + count).
std::int64_t plan_rows(const Pieces& pieces, std::int64_t count, std::int64_t row, std::int64_t* first,
                       std::int64_t* sequences);

struct PackedRows {
    Pieces pieces;
    const std::int64_t* first;
    const std::int64_t* sequences;
    std::int64_t count, row;  // count row < 2^31
    const void* tokens;  // In
    std::int64_t pad;    // an Out
    std::int64_t ignore;
    void* out;  // Out
    std::int64_t* labels;  // null: none are written
    std::int32_t* segment;
    std::int32_t* positions;
    std::int32_t* cu_seqlens;
};

// Fills rows [begin, end): threads share the rows. For In one of the integer types up to int64, Out the same or int64.
template <class In, class Out>
void fill_rows(const PackedRows& job, std::int64_t begin, std::int64_t end);

// Fills rows [begin, end) of another stream of the same documents: value_bytes each, in padding `fill` (element_bytes, of
// which value_bytes is a multiple).
void fill_values(const Pieces& pieces, const std::int64_t* first, std::int64_t row, const std::byte* values,
                 std::size_t value_bytes, const std::byte* fill, std::size_t element_bytes, std::byte* out,
                 std::int64_t begin, std::int64_t end);

}  // namespace feedline
