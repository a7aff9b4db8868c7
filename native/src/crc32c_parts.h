// SPDX-License-Identifier: Apache-2.0
// crc32c() with an instruction that some processors have. A file for one kind of processor includes this. All of it is
// local to that file, as it may use instructions that others may not.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {
namespace {

// The instruction takes three cycles on x86, and one can begin in each. So three parts are summed at the same time. They
// are combined by the effect of as many zero bytes on the register, which is linear.
constexpr unsigned kLongLog = 10, kShortLog = 7;

struct Zeros {
    std::uint32_t table[4][256];  // by byte of the register
};

struct Columns {
    std::uint32_t of[32];  // the register for each bit of the register before
};

constexpr std::uint32_t times(const Columns& columns, std::uint32_t state) {
    std::uint32_t product = 0;
    for (unsigned bit = 0; bit < 32; ++bit)
        if (state >> bit & 1) product ^= columns.of[bit];
    return product;
}

// The effect of 2^log zero bytes.
constexpr Zeros zeros(unsigned log) {
    Columns columns{};
    for (unsigned bit = 0; bit < 32; ++bit) {
        std::uint32_t r = 1u << bit;
        for (int k = 0; k < 8; ++k) r = r >> 1 ^ ((r & 1) ? 0x82F63B78u : 0u);
        columns.of[bit] = r;
    }
    for (unsigned k = 0; k < log; ++k) {
        Columns twice{};
        for (unsigned bit = 0; bit < 32; ++bit) twice.of[bit] = times(columns, columns.of[bit]);
        columns = twice;
    }
    Zeros tables{};
    for (unsigned byte = 0; byte < 4; ++byte)
        for (std::uint32_t v = 0; v < 256; ++v) tables.table[byte][v] = times(columns, v << 8 * byte);
    return tables;
}

constexpr Zeros kLong = zeros(kLongLog), kShort = zeros(kShortLog);

std::uint32_t after_zeros(const Zeros& after, std::uint32_t state) {
    return after.table[0][state & 0xFF] ^ after.table[1][state >> 8 & 0xFF] ^ after.table[2][state >> 16 & 0xFF] ^
           after.table[3][state >> 24];
}

std::uint64_t load(const std::uint8_t* p) {
    std::uint64_t word;
    __builtin_memcpy(&word, p, 8);
    return word;
}

template <class Instruction, unsigned Log>
std::uint32_t update_three_parts(const Zeros& after, std::uint32_t state, const std::uint8_t*& p, std::size_t& n) {
    constexpr std::size_t part = std::size_t{1} << Log;
    for (; n >= 3 * part; n -= 3 * part, p += 3 * part) {
        typename Instruction::Register a = state, b = 0, c = 0;
        for (std::size_t i = 0; i < part; i += 8) {
            a = Instruction::word(a, load(p + i));
            b = Instruction::word(b, load(p + part + i));
            c = Instruction::word(c, load(p + 2 * part + i));
        }
        const std::uint32_t two = after_zeros(after, static_cast<std::uint32_t>(a)) ^ static_cast<std::uint32_t>(b);
        state = after_zeros(after, two) ^ static_cast<std::uint32_t>(c);
    }
    return state;
}

// `Instruction::word` and `Instruction::byte` return the register after eight bytes or one. The register is as wide as
// the processor's.
template <class Instruction>
std::uint32_t update_with(std::uint32_t state, const std::uint8_t* p, std::size_t n) {
    state = update_three_parts<Instruction, kLongLog>(kLong, state, p, n);
    state = update_three_parts<Instruction, kShortLog>(kShort, state, p, n);
    typename Instruction::Register wide = state;
    for (; n >= 8; n -= 8, p += 8) wide = Instruction::word(wide, load(p));
    state = static_cast<std::uint32_t>(wide);
    for (; n > 0; --n, ++p) state = Instruction::byte(state, *p);
    return state;
}

}  // namespace
}  // namespace feedline
