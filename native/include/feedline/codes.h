// SPDX-License-Identifier: Apache-2.0
// Gradients coded in 16 bits, 2 or 1: the codes that a worker sends, and the sum of several workers' codes.
//
// Two bits and one follow MXNet's scheme (quantize.h): value + residual is coded, and the new residual is written to
// `left`. For bfloat16 and float16 the value is rounded to the nearest, ties to even. They leave no residual, so
// `residual` and `left` are not used. A NaN stays one. A number that is too large for a float16 becomes an infinity.
//
// Codes are little-endian. A part of the values can be encoded and decoded by itself if it begins at a multiple of
// kCodeStep values.
//
// Cost: encoding reads each value and residual once, and writes its code and new residual. A sum reads each code once
// and writes each value once, whatever the number of codes. O(n), vectorised.
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

// Encodes n values. `left` may be `residual`, no other arrays may overlap. threshold: of two bits and one.
void encode(Code code, float threshold, const float* value, const float* residual, std::size_t n, float* left,
            std::uint8_t* codes);

// Writes the sum of the n values of each of `num` arrays of codes (at least 1), added from the first to the last.
void decode_sum(Code code, float threshold, const std::uint8_t* const* codes, std::size_t num, std::size_t n,
                float* out);

}  // namespace feedline
