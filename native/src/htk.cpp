#include "feedline/htk.h"

#include <cstring>

namespace feedline {

void decode_htk(const std::uint8_t* from, const HtkFrames& frames, std::size_t count, float* out) {
    const std::size_t n = count * frames.dim;
    if (n == 0) return;  // arrays without items may have no memory
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

}  // namespace feedline
