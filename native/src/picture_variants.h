// Inner loops of pictures that have variants for an instruction set. All variants produce the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

constexpr int kWeightBits = 14;  // of the weights of a resize, whose sum is 1
constexpr int kBetweenBits = 6;  // fractional bits between its two passes

// One row of sums over rows: out[i] = sum of weights[t] * rows[t][i], with kBetweenBits fractional bits. taps is even,
// n at least 16.
void add_rows_avx2(const std::uint8_t* const* rows, const std::int16_t* weights, int taps, std::size_t n,
                   std::int16_t* out);

// One row of results out of a row of sums, of three channels.
//
// first: the first sum of each result. lanes: weights of two taps in an int32, four times each, for results k and k + 1
// next to each other: [results / 2][pairs][2][4]. Both are padded to a multiple of four results. Reads up to 8 sums
// from the first of the last pair on, and writes up to 13 bytes after the results.
void add_columns_avx2(const std::int16_t* in, const int* first, const std::int32_t* lanes, int pairs, int results,
                      std::uint8_t* out);

// A row of n pixels of three channels from right to left. Reads and writes up to one byte after them.
void mirror_row_avx2(const std::uint8_t* from, std::size_t n, std::uint8_t* to);

// (value - mean) * scale of n pixels of three channels. plane: floats from a channel to the next, or 0 if channels come
// last. Reads up to 8 bytes after the pixels.
void write_floats_avx2(const std::uint8_t* pixels, std::size_t n, const float* mean, const float* scale,
                       std::size_t plane, float* out);

// Changes of colours of n pixels of three channels, of which number `red` (0 or 2) is red. They change the first of
// them and return their number. Portable code does the others. blend: n levels.
std::size_t blend_avx2(std::uint8_t* levels, std::size_t n, float factor, float share);
std::size_t sum_greys_avx2(const std::uint8_t* pixels, std::size_t n, int red, std::uint64_t* sum);
std::size_t saturate_avx2(std::uint8_t* pixels, std::size_t n, float factor, int red);
std::size_t shift_hue_avx2(std::uint8_t* pixels, std::size_t n, float shift, int red);

}  // namespace feedline
