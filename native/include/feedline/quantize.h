// SPDX-License-Identifier: Apache-2.0
// Gradients quantised to two bits or one, with error feedback in a residual: MXNet's scheme, bit for bit.
//
// All arithmetic is float32. With r = residual + gradient, element by element:
//
//   two bits, threshold t > 0:  r >= t: code 11, decoded t;  r <= -t: code 10, decoded -t;  else 00, decoded 0.
//   one bit, any threshold t:   r > t: code 1, decoded 1;  else code 0, decoded -1.
//
// The new residual is r minus the decoded value, so the decoded values plus the residual are the sum of the gradients,
// up to rounding. A NaN compares as false (00, or 0) and stays in its residual, as does an infinity.
//
// Codes fill bytes from the top bits down: value i of two bits in byte i / 4, of one bit in byte i / 8. The buffer has
// 32-bit words, and codes after the last value are 0. Code 01 decodes to 0.
//
// Cost: encoding reads 8 bytes per value and writes 4 and the codes, decoding writes 4. O(n), vectorised.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

// Bytes of the codes of n values of `bits` 2 or 1.
constexpr std::size_t quantized_bytes(std::size_t n, unsigned bits) { return (n * bits + 31) / 32 * 4; }

// `residual` and `residual_out` have n values and may be the same array. No other arrays may overlap.
void quantize_two_bits(const float* gradient, const float* residual, std::size_t n, float threshold,
                       float* residual_out, std::uint8_t* codes);
void quantize_one_bit(const float* gradient, const float* residual, std::size_t n, float threshold,
                      float* residual_out, std::uint8_t* codes);

// Writes the values of n codes.
void dequantize_two_bits(const std::uint8_t* codes, std::size_t n, float threshold, float* out);
void dequantize_one_bit(const std::uint8_t* codes, std::size_t n, float* out);

}  // namespace feedline
