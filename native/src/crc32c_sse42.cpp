#include <nmmintrin.h>

#include "crc32c_variants.h"

namespace feedline {

std::uint32_t crc32c_update_sse42(std::uint32_t state, const std::uint8_t* p, std::size_t n) {
    std::uint64_t wide = state;
    for (; n >= 8; n -= 8, p += 8) {
        std::uint64_t word;
        __builtin_memcpy(&word, p, 8);
        wide = _mm_crc32_u64(wide, word);
    }
    state = static_cast<std::uint32_t>(wide);
    for (; n > 0; --n, ++p) state = _mm_crc32_u8(state, *p);
    return state;
}

}  // namespace feedline
