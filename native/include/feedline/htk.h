// SPDX-License-Identifier: Apache-2.0
// Frames of HTK feature files as float32 rows.
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

// Decodes `count` frames, one after the other, to `dim` floats each. O(output).
void decode_htk(const std::uint8_t* from, const HtkFrames& frames, std::size_t count, float* out);

}  // namespace feedline
