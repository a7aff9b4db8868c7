#include <nmmintrin.h>

#include "crc32c_parts.h"
#include "crc32c_variants.h"

namespace feedline {
namespace {

struct Sse42 {
    using Register = std::uint64_t;
    static Register word(Register state, std::uint64_t word) { return _mm_crc32_u64(state, word); }
    static std::uint32_t byte(std::uint32_t state, std::uint8_t byte) { return _mm_crc32_u8(state, byte); }
};

}  // namespace

std::uint32_t crc32c_update_sse42(std::uint32_t state, const std::uint8_t* p, std::size_t n) {
    return update_with<Sse42>(state, p, n);
}

}  // namespace feedline
