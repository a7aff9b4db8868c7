// SPDX-License-Identifier: Apache-2.0
// Frames of HTK feature files as float32 rows, each with its neighbours.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

enum class HtkKind : int { floats = 0, compressed = 1, bytes = 2 };

struct HtkFrames {
    HtkKind kind;
    bool swapped;            // the file has the other byte order
    std::size_t dim;         // values of a frame, at least 1
    const float* scale;      // compressed: value = (short + offset) / scale; dim of each
    const float* offset;

    std::size_t frame_bytes() const { return dim * (kind == HtkKind::floats ? 4 : kind == HtkKind::compressed ? 2 : 1); }
};

// Row t of an utterance is its frames t - left .. t + right, clamped to the utterance: (left + 1 + right) * dim floats.
// The n utterances lie one after the other in `bytes`, `lengths[i]` frames each, and their rows in `out`. `scratch` holds
// the frames of the longest utterance, decoded; it may be null without neighbours. O(output), a copy of each row.
void expand_htk(const std::uint8_t* bytes, const HtkFrames& frames, const std::int64_t* lengths, std::size_t n,
                std::size_t left, std::size_t right, float* scratch, float* out);

}  // namespace feedline
