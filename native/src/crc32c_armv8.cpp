#include <arm_acle.h>

#include "crc32c_parts.h"
#include "crc32c_variants.h"

namespace feedline {
namespace {

struct Armv8 {
    using Register = std::uint32_t;
    static Register word(Register state, std::uint64_t word) { return __crc32cd(state, word); }
    static std::uint32_t byte(std::uint32_t state, std::uint8_t byte) { return __crc32cb(state, byte); }
};

}  // namespace

std::uint32_t crc32c_update_armv8(std::uint32_t state, const std::uint8_t* p, std::size_t n) {
    return update_with<Armv8>(state, p, n);
}

}  // namespace feedline
