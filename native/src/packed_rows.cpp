#include "feedline/packed_rows.h"

#include <algorithm>
#include <cstring>

#include "fill.h"

namespace feedline {

PieceFault first_bad_piece(const Pieces& pieces, std::int64_t count, std::int64_t row, std::int64_t tokens) {
    constexpr std::int64_t kPositions = std::int64_t{1} << 31;
    std::int64_t row_before = 0, free = 0;  // the row of the piece before, and the first place after it
    for (std::size_t i = 0; i < pieces.size; ++i) {
        // Each rule bounds the numbers that the next ones add, so no sum overflows.
        const std::int64_t r = pieces.row[i], offset = pieces.offset[i], length = pieces.length[i];
        if (r < row_before || r >= count) return {i, PieceRule::row};
        if (r > row_before) free = 0;
        if (offset < free || offset >= row) return {i, PieceRule::offset};
        if (length < 1 || length > row - offset) return {i, PieceRule::length};
        const std::int64_t needed = length + (pieces.goes_on != nullptr && pieces.goes_on[i] != 0);
        if (pieces.start[i] < 0 || pieces.start[i] > tokens - needed) return {i, PieceRule::start};
        if (pieces.position != nullptr && (pieces.position[i] < 0 || pieces.position[i] > kPositions - length))
            return {i, PieceRule::position};
        row_before = r;
        free = offset + length;
    }
    return {0, PieceRule::none};
}

std::int64_t plan_rows(const Pieces& pieces, std::int64_t count, std::int64_t row, std::int64_t* first,
                       std::int64_t* sequences) {
    std::int64_t longest = 0, num_sequences = 0;
    std::size_t i = 0;
    for (std::int64_t r = 0; r < count; ++r) {
        first[r] = static_cast<std::int64_t>(i);
        sequences[r] = num_sequences;
        std::int64_t free = 0;
        for (; i < pieces.size && pieces.row[i] == r; ++i) {
            const std::int64_t gap = pieces.offset[i] - free;
            num_sequences += 1 + (gap > 0);
            longest = std::max({longest, gap, pieces.length[i]});
            free = pieces.offset[i] + pieces.length[i];
        }
        num_sequences += free < row;
        longest = std::max(longest, row - free);
    }
    first[count] = static_cast<std::int64_t>(i);
    sequences[count] = num_sequences;
    return longest;
}

template <class In, class Out>
void fill_rows(const PackedRows& job, std::int64_t begin, std::int64_t end) {
    const Pieces& pieces = job.pieces;
    const Out pad = static_cast<Out>(job.pad);
    for (std::int64_t r = begin; r < end; ++r) {
        const std::int64_t before = r * job.row;
        Out* out = static_cast<Out*>(job.out) + before;
        std::int64_t* labels = job.labels == nullptr ? nullptr : job.labels + before;
        std::int32_t* segment = job.segment + before;
        std::int32_t* positions = job.positions + before;
        std::int32_t* sequence = job.cu_seqlens + job.sequences[r];
        std::int64_t free = 0;

        const auto pad_to = [&](std::int64_t to) {
            if (to == free) return;
            *sequence++ = static_cast<std::int32_t>(before + free);
            std::fill(out + free, out + to, pad);
            if (labels != nullptr) std::fill(labels + free, labels + to, job.ignore);
            std::fill(segment + free, segment + to, 0);
            std::fill(positions + free, positions + to, 0);
        };

        const auto first = static_cast<std::size_t>(job.first[r]), last = static_cast<std::size_t>(job.first[r + 1]);
        for (std::size_t i = first; i < last; ++i) {
            const std::int64_t at = pieces.offset[i], length = pieces.length[i];
            const In* __restrict from = static_cast<const In*>(job.tokens) + pieces.start[i];
            pad_to(at);
            *sequence++ = static_cast<std::int32_t>(before + at);
            std::copy(from, from + length, out + at);
            if (labels != nullptr) {
                const bool goes_on = pieces.goes_on != nullptr && pieces.goes_on[i] != 0;
                std::copy(from + 1, from + length + goes_on, labels + at);
                if (!goes_on) labels[at + length - 1] = job.ignore;
            }
            std::fill(segment + at, segment + at + length, static_cast<std::int32_t>(i - first + 1));
            const auto position = static_cast<std::int32_t>(pieces.position == nullptr ? 0 : pieces.position[i]);
            for (std::int32_t k = 0; k < length; ++k) positions[at + k] = position + k;
            free = at + length;
        }
        pad_to(job.row);
    }
    if (end == job.count) job.cu_seqlens[job.sequences[end]] = static_cast<std::int32_t>(end * job.row);
}

void fill_values(const Pieces& pieces, const std::int64_t* first, std::int64_t row, const std::byte* values,
                 std::size_t value_bytes, const std::byte* fill, std::size_t element_bytes, std::byte* out,
                 std::int64_t begin, std::int64_t end) {
    const auto bytes = [&](std::int64_t places) { return static_cast<std::size_t>(places) * value_bytes; };
    if (value_bytes == 0) return;
    for (std::int64_t r = begin; r < end; ++r) {
        std::byte* to = out + bytes(r * row);
        std::int64_t free = 0;
        for (auto i = static_cast<std::size_t>(first[r]); i < static_cast<std::size_t>(first[r + 1]); ++i) {
            const std::int64_t at = pieces.offset[i], length = pieces.length[i];
            fill_elements(to + bytes(free), bytes(at - free), fill, element_bytes);
            std::memcpy(to + bytes(at), values + bytes(pieces.start[i]), bytes(length));
            free = at + length;
        }
        fill_elements(to + bytes(free), bytes(row - free), fill, element_bytes);
    }
}

template void fill_rows<std::uint8_t, std::uint8_t>(const PackedRows&, std::int64_t, std::int64_t);
template void fill_rows<std::uint8_t, std::int64_t>(const PackedRows&, std::int64_t, std::int64_t);
template void fill_rows<std::int8_t, std::int8_t>(const PackedRows&, std::int64_t, std::int64_t);
template void fill_rows<std::int8_t, std::int64_t>(const PackedRows&, std::int64_t, std::int64_t);
template void fill_rows<std::uint16_t, std::uint16_t>(const PackedRows&, std::int64_t, std::int64_t);
template void fill_rows<std::uint16_t, std::int64_t>(const PackedRows&, std::int64_t, std::int64_t);
template void fill_rows<std::int16_t, std::int16_t>(const PackedRows&, std::int64_t, std::int64_t);
template void fill_rows<std::int16_t, std::int64_t>(const PackedRows&, std::int64_t, std::int64_t);
template void fill_rows<std::uint32_t, std::uint32_t>(const PackedRows&, std::int64_t, std::int64_t);
template void fill_rows<std::uint32_t, std::int64_t>(const PackedRows&, std::int64_t, std::int64_t);
template void fill_rows<std::int32_t, std::int32_t>(const PackedRows&, std::int64_t, std::int64_t);
template void fill_rows<std::int32_t, std::int64_t>(const PackedRows&, std::int64_t, std::int64_t);
template void fill_rows<std::int64_t, std::int64_t>(const PackedRows&, std::int64_t, std::int64_t);

}  // namespace feedline
