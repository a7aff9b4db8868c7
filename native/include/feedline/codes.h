// SPDX-License-Identifier: Apache-2.0
// Gradients coded in 16 bits, 2 or 1: what one worker sends, and the sum of what several have sent.
//
// Two bits and one: MXNet's scheme, see quantize.h; what is coded is value + residual, and what that leaves is written
// to `left`. bfloat16 and float16: the value rounded to the nearest, ties to even; nothing is left, and `residual` and
// `left` are not looked at. A NaN stays one; what is too large for a float16 becomes an infinity.
//
// Codes are little-endian. A part of a code can be coded and decoded by itself if it begins at a multiple of
// kCodeStep values.
//
// Cost: encoding reads each value (and residual) once and writes its code (and what is left); a sum reads each code
// once and writes each value once, whatever the number of codes. O(n), vectorised.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

enum class Code { two_bits, one_bit, bfloat16, float16 };

constexpr std::size_t kCodeStep = 32;

// Bytes of the codes of n values; for 2 bits and 1, whole 32-bit words.
constexpr std::size_t code_bytes(Code code, std::size_t n) {
    const std::size_t bits = code == Code::two_bits ? 2 : code == Code::one_bit ? 1 : 16;
    return bits == 16 ? 2 * n : (n * bits + 31) / 32 * 4;
}

// `left` may be `residual`; no other arrays may overlap.
void encode(Code code, float threshold, const float* value, const float* residual, std::size_t n, float* left,
            std::uint8_t* codes);

// Writes the sum of the values of `num` codes (at least 1), added from the first to the last.
void decode_sum(Code code, float threshold, const std::uint8_t* const* codes, std::size_t num, std::size_t n,
                float* out);

}  // namespace feedline
