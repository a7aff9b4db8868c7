// Inner loops of pictures that have variants for an instruction set. All variants return the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

constexpr int kWeightBits = 14;  // of the weights of a resize, whose sum is 1
constexpr int kBetweenBits = 6;  // fractional bits between its two passes

// One row of sums over rows: out[i] = sum of weights[t] * rows[t][i], with kBetweenBits fractional bits. taps is even.
void add_rows_avx2(const std::uint8_t* const* rows, const std::int16_t* weights, int taps, std::size_t n,
                   std::int16_t* out);

// One row of results out of a row of sums, of three channels.
//
// first: where the sums begin that make each result; lanes: weights of two taps in an int32, four times each, of
// results k and k + 1 side by side: [results / 2][pairs][2][4]. Both go on to a multiple of four results. Reads up to 8
// sums from the first of the last pair on, writes up to 13 bytes behind the results.
void add_columns_avx2(const std::int16_t* in, const int* first, const std::int32_t* lanes, int pairs, int results,
                      std::uint8_t* out);

// A row of n pixels of three channels from right to left. Reads and writes up to one byte behind them.
void mirror_row_avx2(const std::uint8_t* from, std::size_t n, std::uint8_t* to);

// (value - mean) * scale of n pixels of three channels; channels first if `planes`. Reads up to 8 bytes behind them.
void write_floats_avx2(const std::uint8_t* pixels, std::size_t n, const float* mean, const float* scale, bool planes,
                       float* out);

// Changes of colours of the first pixels, of three channels and n in all, `red` (0 or 2) being the first or the last of
// them. They return how many they have done; the portable code does the rest.
std::size_t blend_avx2(std::uint8_t* levels, std::size_t n, float factor, float share);
std::size_t sum_greys_avx2(const std::uint8_t* pixels, std::size_t n, int red, std::uint64_t* sum);
std::size_t saturate_avx2(std::uint8_t* pixels, std::size_t n, float factor, int red);
std::size_t shift_hue_avx2(std::uint8_t* pixels, std::size_t n, float shift, int red);

}  // namespace feedline
