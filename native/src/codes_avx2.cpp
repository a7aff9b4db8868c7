// Codes of gradients, 8 values at a time. Everything but the entries is static (see CMakeLists.txt).
#include <immintrin.h>

#include <cstring>

#include "codes_variants.h"

namespace feedline {

// The bits of the codes of 8 values in two bytes, the first value in the top bits of the first byte.
static inline __m256i places() { return _mm256_setr_epi32(6, 4, 2, 0, 14, 12, 10, 8); }

void encode_two_bits_avx2(const float* value, const float* residual, std::size_t n, float threshold, float* left,
                          std::uint8_t* codes) {
    const __m256 high = _mm256_set1_ps(threshold), low = _mm256_set1_ps(-threshold);
    const __m256i shifts = places(), two = _mm256_set1_epi32(2), three = _mm256_set1_epi32(3);
    for (std::size_t i = 0; i < n; i += 8) {
        const __m256 r = _mm256_add_ps(_mm256_loadu_ps(residual + i), _mm256_loadu_ps(value + i));
        const __m256 above = _mm256_cmp_ps(r, high, _CMP_GE_OQ), below = _mm256_cmp_ps(r, low, _CMP_LE_OQ);
        // r - 0 has the bits of r, the sign of a zero included, and r - (-t) is r + t.
        const __m256 sent = _mm256_or_ps(_mm256_and_ps(above, high), _mm256_and_ps(below, low));
        _mm256_storeu_ps(left + i, _mm256_sub_ps(r, sent));
        __m256i code = _mm256_or_si256(_mm256_and_si256(_mm256_castps_si256(above), three),
                                       _mm256_and_si256(_mm256_castps_si256(below), two));
        code = _mm256_sllv_epi32(code, shifts);
        __m128i all = _mm_or_si128(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
        all = _mm_or_si128(all, _mm_unpackhi_epi64(all, all));
        all = _mm_or_si128(all, _mm_shuffle_epi32(all, 1));
        const auto word = static_cast<std::uint16_t>(_mm_cvtsi128_si32(all));
        std::memcpy(codes + i / 4, &word, 2);
    }
}

void sum_two_bits_avx2(const std::uint8_t* const* codes, std::size_t num, std::size_t n, float threshold, float* out) {
    const __m256i shifts = places();
    // Code 01 is never written, and decodes to 0.
    const __m256 values = _mm256_setr_ps(0, 0, -threshold, threshold, 0, 0, -threshold, threshold);
    for (std::size_t i = 0; i < n; i += 8) {
        __m256 sum = _mm256_setzero_ps();
        for (std::size_t k = 0; k < num; ++k) {
            std::uint16_t word;
            std::memcpy(&word, codes[k] + i / 4, 2);
            // The lowest two bits of each element select its value.
            const __m256i selector = _mm256_srlv_epi32(_mm256_set1_epi32(word), shifts);
            const __m256 value = _mm256_permutevar_ps(values, selector);
            sum = k == 0 ? value : _mm256_add_ps(sum, value);
        }
        _mm256_storeu_ps(out + i, sum);
    }
}

static inline __m256i rounded(__m256 value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i nearest = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(nearest, 16), _mm256_set1_epi32(0x7FC0), nan);
}

void encode_bfloat16_avx2(const float* value, std::size_t n, std::uint8_t* codes) {
    for (std::size_t i = 0; i < n; i += 16) {
        const __m256i first = rounded(_mm256_loadu_ps(value + i)), second = rounded(_mm256_loadu_ps(value + i + 8));
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(first, second), 0xD8);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + 2 * i), packed);
    }
}

static inline __m128i eight(const std::uint8_t* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); }

void sum_bfloat16_avx2(const std::uint8_t* const* codes, std::size_t num, std::size_t n, float* out) {
    for (std::size_t i = 0; i < n; i += 8) {
        __m256 sum = _mm256_setzero_ps();
        for (std::size_t k = 0; k < num; ++k) {
            const __m256i wide = _mm256_cvtepu16_epi32(eight(codes[k] + 2 * i));
            const __m256 value = _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
            sum = k == 0 ? value : _mm256_add_ps(sum, value);
        }
        _mm256_storeu_ps(out + i, sum);
    }
}

void encode_float16_avx2(const float* value, std::size_t n, std::uint8_t* codes) {
    for (std::size_t i = 0; i < n; i += 8) {
        const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(value + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + 2 * i), half);
    }
}

void sum_float16_avx2(const std::uint8_t* const* codes, std::size_t num, std::size_t n, float* out) {
    for (std::size_t i = 0; i < n; i += 8) {
        __m256 sum = _mm256_setzero_ps();
        for (std::size_t k = 0; k < num; ++k) {
            const __m256 value = _mm256_cvtph_ps(eight(codes[k] + 2 * i));
            sum = k == 0 ? value : _mm256_add_ps(sum, value);
        }
        _mm256_storeu_ps(out + i, sum);
    }
}

}  // namespace feedline
