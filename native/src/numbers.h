// SPDX-License-Identifier: Apache-2.0
// Decimal numbers for the parsers of text: digits eight at a time, and exact results. Everything is forced inline, as
// in swar.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ctf_parse_job.h"
#include "swar.h"

namespace feedline {
namespace {

FEEDLINE_INLINE bool is_digit(std::uint8_t c) { return static_cast<unsigned>(c) - '0' <= 9; }

FEEDLINE_INLINE float exact(const std::uint8_t* p, const std::uint8_t* e, float) { return ctf_exact_float(p, e); }
FEEDLINE_INLINE double exact(const std::uint8_t* p, const std::uint8_t* e, double) {
    return ctf_exact_double(p, e);
}

// Rounding to double and then to float is correct, unless the double is exactly between two floats.
FEEDLINE_INLINE bool narrows_safely(double d, float& out) {
    std::uint64_t bits;
    __builtin_memcpy(&bits, &d, 8);
    out = static_cast<float>(d);
    return (bits & 0x1FFFFFFFu) != 0x10000000u;
}
FEEDLINE_INLINE bool narrows_safely(double d, double& out) {
    out = d;
    return true;
}

constexpr std::uint64_t kExactIntegers = std::uint64_t{1} << 53;

// Appends the digits at p to `m`, counts them, and sets p to their end. Overflows silently beyond 19 digits, which the
// caller detects by the count.
FEEDLINE_INLINE void add_digits(const std::uint8_t*& p, std::uint64_t& m, std::size_t& count) {
    static const std::uint64_t tens[8] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000};
    for (;;) {
        const std::uint64_t d = minus_zeros(load64(p));
        const unsigned n = leading_digits(d);
        if (n == 0) return;
        m = m * (n == 8 ? 100000000u : tens[n]) + digits_value(d, n);
        p += n;
        count += n;
        if (n < 8) return;
    }
}

}  // namespace
}  // namespace feedline
