// SPDX-License-Identifier: Apache-2.0
// Frames of HTK feature files as float32 rows, each with its neighbours.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

enum class HtkKind : int { floats = 0, compressed = 1, bytes = 2 };

struct HtkFrames {
    HtkKind kind;
    bool swapped;            // whether the file has the other byte order
    std::size_t dim;         // values of a frame, at least 1
    const float* scale;      // compressed: value = (short + offset) / scale, with `dim` numbers each
    const float* offset;

    std::size_t frame_bytes() const { return dim * (kind == HtkKind::floats ? 4 : kind == HtkKind::compressed ? 2 : 1); }
};

// Row t of an utterance is its frames t - left .. t + right, clamped to the utterance: (left + 1 + right) * dim floats.
// The n utterances are one after the other in `bytes`, with `lengths[i]` frames each, and so are their rows in `out`.
// `scratch` has room for the decoded frames of the longest utterance, and may be null without neighbours. O(output).
void expand_htk(const std::uint8_t* bytes, const HtkFrames& frames, const std::int64_t* lengths, std::size_t n,
                std::size_t left, std::size_t right, float* scratch, float* out);

}  // namespace feedline
