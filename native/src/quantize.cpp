#include "feedline/quantize.h"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace feedline {
namespace {

// The code of one value, and the new residual.
struct Coded {
    unsigned code;
    float residual;
};

Coded two_bits(float gradient, float residual, float threshold) {
    const float r = residual + gradient;
    if (r >= threshold) return {3, r - threshold};
    if (r <= -threshold) return {2, r + threshold};
    return {0, r};
}

Coded one_bit(float gradient, float residual, float threshold) {
    const float r = residual + gradient;
    return r > threshold ? Coded{1, r - 1.0f} : Coded{0, r + 1.0f};
}

// Encodes the values from `at` on one by one, and pads the codes with zeros.
template <unsigned kBits, class Code>
void quantize_from(const float* gradient, const float* residual, std::size_t at, std::size_t n, float* out,
                   std::uint8_t* codes, Code code) {
    constexpr std::size_t kPerByte = 8 / kBits;
    std::fill(codes + at / kPerByte, codes + quantized_bytes(n, kBits), std::uint8_t{0});
    for (; at < n; ++at) {
        const Coded coded = code(gradient[at], residual[at]);
        out[at] = coded.residual;
        const auto shift = static_cast<unsigned>(8 - kBits - at % kPerByte * kBits);
        codes[at / kPerByte] = static_cast<std::uint8_t>(codes[at / kPerByte] | coded.code << shift);
    }
}

// Decodes bytes by a table of each byte's values, then the remaining values. `value` maps a code to its value.
template <unsigned kBits, class Value>
void decode(const std::uint8_t* codes, std::size_t n, float* out, Value value) {
    constexpr std::size_t kPerByte = 8 / kBits;
    constexpr unsigned kMask = (1u << kBits) - 1;
    const auto at = [&](unsigned byte, std::size_t k) {
        return value(byte >> (8 - kBits - static_cast<unsigned>(k) * kBits) & kMask);
    };
    std::size_t bytes = 0;
    // To make the table costs as much as decoding some thousand values one by one.
    if (n >= 4096) {
        alignas(64) float table[256][kPerByte];
        for (unsigned byte = 0; byte < 256; ++byte)
            for (std::size_t k = 0; k < kPerByte; ++k) table[byte][k] = at(byte, k);
        bytes = n / kPerByte;
        for (std::size_t i = 0; i < bytes; ++i)
            std::memcpy(out + i * kPerByte, table[codes[i]], sizeof(table[0]));
    }
    for (std::size_t i = bytes * kPerByte; i < n; ++i) out[i] = at(codes[i / kPerByte], i % kPerByte);
}

#if defined(__SSE2__)
// Bits 0..3 of a comparison mask in the order of codes: the first value on top.
constexpr std::array<std::uint8_t, 16> kReversed = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};

constexpr std::array<std::uint8_t, 16> make_spread() {
    std::array<std::uint8_t, 16> table{};
    for (unsigned mask = 0; mask < 16; ++mask)
        for (unsigned k = 0; k < 4; ++k)
            if (mask >> k & 1) table[mask] = static_cast<std::uint8_t>(table[mask] | 1u << (6 - 2 * k));
    return table;
}
// The same bits two apart, in the lower place of each code.
constexpr std::array<std::uint8_t, 16> kSpread = make_spread();
#endif

}  // namespace

void quantize_two_bits(const float* gradient, const float* residual, std::size_t n, float threshold,
                       float* residual_out, std::uint8_t* codes) {
    std::size_t i = 0;
#if defined(__SSE2__)
    const __m128 high = _mm_set1_ps(threshold), low = _mm_set1_ps(-threshold);
    for (; i + 4 <= n; i += 4) {
        const __m128 r = _mm_add_ps(_mm_loadu_ps(residual + i), _mm_loadu_ps(gradient + i));
        const __m128 above = _mm_cmpge_ps(r, high), below = _mm_cmple_ps(r, low);
        // r - 0 has the bits of r, the sign of a zero included, and r - (-t) is r + t.
        const __m128 sent = _mm_or_ps(_mm_and_ps(above, high), _mm_and_ps(below, low));
        _mm_storeu_ps(residual_out + i, _mm_sub_ps(r, sent));
        const unsigned up = kSpread[static_cast<unsigned>(_mm_movemask_ps(above))];
        const unsigned down = kSpread[static_cast<unsigned>(_mm_movemask_ps(below))];
        codes[i / 4] = static_cast<std::uint8_t>(up | (up | down) << 1);
    }
#endif
    quantize_from<2>(gradient, residual, i, n, residual_out, codes,
                     [threshold](float g, float r) { return two_bits(g, r, threshold); });
}

void quantize_one_bit(const float* gradient, const float* residual, std::size_t n, float threshold,
                      float* residual_out, std::uint8_t* codes) {
    std::size_t i = 0;
#if defined(__SSE2__)
    const __m128 limit = _mm_set1_ps(threshold), one = _mm_set1_ps(1.0f), minus = _mm_set1_ps(-1.0f);
    const auto four = [&](std::size_t at) {
        const __m128 r = _mm_add_ps(_mm_loadu_ps(residual + at), _mm_loadu_ps(gradient + at));
        const __m128 above = _mm_cmpgt_ps(r, limit);
        const __m128 sent = _mm_or_ps(_mm_and_ps(above, one), _mm_andnot_ps(above, minus));
        _mm_storeu_ps(residual_out + at, _mm_sub_ps(r, sent));
        return kReversed[static_cast<unsigned>(_mm_movemask_ps(above))];
    };
    for (; i + 8 <= n; i += 8) {
        const unsigned first = four(i), second = four(i + 4);
        codes[i / 8] = static_cast<std::uint8_t>(first << 4 | second);
    }
#endif
    quantize_from<1>(gradient, residual, i, n, residual_out, codes,
                     [threshold](float g, float r) { return one_bit(g, r, threshold); });
}

void dequantize_two_bits(const std::uint8_t* codes, std::size_t n, float threshold, float* out) {
    decode<2>(codes, n, out,
              [threshold](unsigned code) { return code == 3 ? threshold : code == 2 ? -threshold : 0.0f; });
}

void dequantize_one_bit(const std::uint8_t* codes, std::size_t n, float* out) {
    decode<1>(codes, n, out, [](unsigned code) { return code == 1 ? 1.0f : -1.0f; });
}

}  // namespace feedline
