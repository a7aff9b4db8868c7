// SPDX-License-Identifier: Apache-2.0
// Eight bytes at a time in an ordinary register. Bytes are numbered from the lowest, as on little-endian machines.
// Everything is forced inline. These functions are used in files compiled for several instruction sets, and with a copy
// of each the linker might choose the wrong one.
#pragma once

#include <cstdint>

namespace feedline {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the SWAR kernels read words as little endian");

#define FEEDLINE_INLINE static inline __attribute__((always_inline))

FEEDLINE_INLINE std::uint64_t load64(const std::uint8_t* p) {
    std::uint64_t v;
    __builtin_memcpy(&v, p, 8);
    return v;
}

// `v` ^ "00000000": digits become their values.
FEEDLINE_INLINE std::uint64_t minus_zeros(std::uint64_t v) { return v ^ 0x3030303030303030u; }

// The number of digits at the start of the eight bytes. `d` = minus_zeros(v). Carries may misjudge bytes after the
// first other one, which do not matter.
FEEDLINE_INLINE unsigned leading_digits(std::uint64_t d) {
    const std::uint64_t other = ((d + 0x0606060606060606u) | d) & 0xF0F0F0F0F0F0F0F0u;
    return other ? static_cast<unsigned>(__builtin_ctzll(other)) >> 3 : 8;
}

// The number that the first `n` digits form, 1 <= n <= 8. `d` = minus_zeros(v).
FEEDLINE_INLINE std::uint64_t digits_value(std::uint64_t d, unsigned n) {
    d <<= 64 - 8 * n;  // adds leading zeros, and drops the bytes after the digits
    d = d * 10 + (d >> 8);
    return (((d & 0x000000FF000000FFu) * 0x000F424000000064u) +
            (((d >> 16) & 0x000000FF000000FFu) * 0x0000271000000001u)) >> 32;
}

// Bit i is set if byte i of v equals `byte`. Exact for every byte.
FEEDLINE_INLINE unsigned equal_bits(std::uint64_t v, std::uint8_t byte) {
    const std::uint64_t x = v ^ (0x0101010101010101u * byte);
    const std::uint64_t low7 = (x & 0x7F7F7F7F7F7F7F7Fu) + 0x7F7F7F7F7F7F7F7Fu;
    const std::uint64_t zero = ~(low7 | x | 0x7F7F7F7F7F7F7F7Fu);  // high bit of each zero byte
    return static_cast<unsigned>(((zero >> 7) * 0x0102040810204080u) >> 56);
}

}  // namespace feedline
