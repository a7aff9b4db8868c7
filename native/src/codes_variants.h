// The loops of codes.cpp that have variants. n is a multiple of kCodeStep.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

void encode_two_bits_avx2(const float* value, const float* residual, std::size_t n, float threshold, float* left,
                          std::uint8_t* codes);
void encode_bfloat16_avx2(const float* value, std::size_t n, std::uint8_t* codes);
void encode_float16_avx2(const float* value, std::size_t n, std::uint8_t* codes);

void sum_two_bits_avx2(const std::uint8_t* const* codes, std::size_t num, std::size_t n, float threshold, float* out);
void sum_bfloat16_avx2(const std::uint8_t* const* codes, std::size_t num, std::size_t n, float* out);
void sum_float16_avx2(const std::uint8_t* const* codes, std::size_t num, std::size_t n, float* out);

}  // namespace feedline
