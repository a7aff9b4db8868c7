#include "feedline/htk.h"

#include <cstring>

namespace feedline {

namespace {

void decode(const std::uint8_t* from, const HtkFrames& frames, std::size_t count, float* out) {
    const std::size_t n = count * frames.dim;
    switch (frames.kind) {
        case HtkKind::floats:
            if (!frames.swapped) {
                std::memcpy(out, from, n * 4);
                return;
            }
            for (std::size_t i = 0; i < n; ++i) {
                std::uint32_t bits;
                std::memcpy(&bits, from + i * 4, 4);
                bits = __builtin_bswap32(bits);
                std::memcpy(out + i, &bits, 4);
            }
            return;
        case HtkKind::compressed:
            for (std::size_t t = 0; t < count; ++t, from += frames.dim * 2, out += frames.dim) {
                for (std::size_t d = 0; d < frames.dim; ++d) {
                    std::uint16_t bits;
                    std::memcpy(&bits, from + d * 2, 2);
                    if (frames.swapped) bits = __builtin_bswap16(bits);
                    out[d] = (static_cast<float>(static_cast<std::int16_t>(bits)) + frames.offset[d]) / frames.scale[d];
                }
            }
            return;
        case HtkKind::bytes:
            for (std::size_t i = 0; i < n; ++i) out[i] = from[i];
            return;
    }
}

}  // namespace

void expand_htk(const std::uint8_t* bytes, const HtkFrames& frames, const std::int64_t* lengths, std::size_t n,
                std::size_t left, std::size_t right, float* scratch, float* out) {
    const std::size_t dim = frames.dim, slots = left + 1 + right;
    for (std::size_t u = 0; u < n; ++u) {
        const auto length = static_cast<std::size_t>(lengths[u]);
        if (slots == 1) {
            decode(bytes, frames, length, out);
        } else {
            decode(bytes, frames, length, scratch);
            for (std::size_t t = 0; t < length; ++t) {
                float* row = out + t * slots * dim;
                if (t >= left && t + right < length) {
                    std::memcpy(row, scratch + (t - left) * dim, slots * dim * sizeof(float));
                    continue;
                }
                for (std::size_t slot = 0; slot < slots; ++slot) {
                    const std::size_t shifted = t + slot;  // of the frame, plus `left`
                    const std::size_t frame = shifted < left ? 0 : shifted - left < length ? shifted - left : length - 1;
                    std::memcpy(row + slot * dim, scratch + frame * dim, dim * sizeof(float));
                }
            }
        }
        bytes += length * frames.frame_bytes();
        out += length * slots * dim;
    }
}

}  // namespace feedline
