#include "feedline/crc32c.h"

#include <array>
#include <cstring>

#include "crc32c_variants.h"
#include "feedline/cpu.h"

namespace feedline {
namespace {

// table[k][b]: the register after byte b and k further zero bytes, so that eight bytes are folded at once.
using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
    Tables t{};
    for (std::uint32_t b = 0; b < 256; ++b) {
        std::uint32_t r = b;
        for (int bit = 0; bit < 8; ++bit) r = (r >> 1) ^ ((r & 1) ? 0x82F63B78u : 0u);
        t[0][b] = r;
    }
    for (std::size_t k = 1; k < 8; ++k)
        for (std::size_t b = 0; b < 256; ++b) t[k][b] = (t[k - 1][b] >> 8) ^ t[0][t[k - 1][b] & 0xFF];
    return t;
}

constexpr Tables kTables = make_tables();

}  // namespace

std::uint32_t crc32c_update_portable(std::uint32_t state, const std::uint8_t* p, std::size_t n) {
    const auto& t = kTables;
    for (; n >= 8; n -= 8, p += 8) {
        // Bytes are put together by hand: the same on either byte order.
        const std::uint32_t low = state ^ (std::uint32_t(p[0]) | std::uint32_t(p[1]) << 8 |
                                           std::uint32_t(p[2]) << 16 | std::uint32_t(p[3]) << 24);
        state = t[7][low & 0xFF] ^ t[6][(low >> 8) & 0xFF] ^ t[5][(low >> 16) & 0xFF] ^ t[4][low >> 24] ^
                t[3][p[4]] ^ t[2][p[5]] ^ t[1][p[6]] ^ t[0][p[7]];
    }
    for (; n > 0; --n, ++p) state = (state >> 8) ^ t[0][(state ^ *p) & 0xFF];
    return state;
}

std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t value) {
    const auto* p = static_cast<const std::uint8_t*>(data);
#ifdef FEEDLINE_X86
    if (cpu().sse41) return ~crc32c_update_sse42(~value, p, size);
#endif
#ifdef FEEDLINE_AARCH64
    if (cpu().crc32) return ~crc32c_update_armv8(~value, p, size);
#endif
    return ~crc32c_update_portable(~value, p, size);
}

}  // namespace feedline
