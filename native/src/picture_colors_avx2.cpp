// Changes of colours, 8 pixels at a time, by the operations of the portable code in the same order. Everything but the
// entries is static (see CMakeLists.txt).
#include <immintrin.h>

#include "picture_variants.h"

namespace feedline {

static inline __m128i load16(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }

// One channel of 8 pixels, as floats.
static inline __m256 channel(const std::uint8_t* pixels, int c) {
    // The value of pixel k is byte 3 * k + c. For the first six pixels it is in the 16 bytes from c on, for the last
    // two in the 16 bytes from 8 on.
    const __m128i low = _mm_setr_epi8(0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128i high = _mm_setr_epi8(-1, -1, -1, -1, -1, -1, 10, 13, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128i a = _mm_shuffle_epi8(load16(pixels + c), low);
    const __m128i shifted = _mm_add_epi8(high, _mm_set1_epi8(static_cast<char>(c)));
    const __m128i b = _mm_shuffle_epi8(load16(pixels + 8), _mm_blendv_epi8(shifted, high, high));
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_or_si128(a, b)));
}

// Stores 8 pixels, given the numbers of their channels, from 0 to 255.
static inline void store_8(std::uint8_t* pixels, __m256i first, __m256i second, __m256i third) {
    const __m256i all =
        _mm256_or_si256(first, _mm256_or_si256(_mm256_slli_epi32(second, 8), _mm256_slli_epi32(third, 16)));
    const __m256i three = _mm256_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1,  //
                                           0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    const __m256i dense = _mm256_shuffle_epi8(all, three);
    const __m128i low = _mm256_castsi256_si128(dense), high = _mm256_extracti128_si256(dense, 1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(pixels), low);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(pixels + 12), high);
    const int last = _mm_extract_epi32(high, 2);
    __builtin_memcpy(pixels + 20, &last, sizeof last);
}

static inline __m256i clipped(__m256 values) {
    return _mm256_cvttps_epi32(_mm256_min_ps(_mm256_max_ps(values, _mm256_setzero_ps()), _mm256_set1_ps(255)));
}

static inline __m256i greys(__m256 r, __m256 g, __m256 b) {
    const __m256 red_green = _mm256_add_ps(_mm256_mul_ps(r, _mm256_set1_ps(0.2989f)), _mm256_mul_ps(g, _mm256_set1_ps(0.587f)));
    return _mm256_cvttps_epi32(_mm256_add_ps(red_green, _mm256_mul_ps(b, _mm256_set1_ps(0.114f))));
}

std::size_t blend_avx2(std::uint8_t* levels, std::size_t n, float factor, float share) {
    const __m256 factors = _mm256_set1_ps(factor), shares = _mm256_set1_ps(share);
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i blended[2];
        for (int k = 0; k < 2; ++k) {
            const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(levels + i + std::size_t(8 * k)));
            const __m256 values = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight));
            blended[k] = clipped(_mm256_add_ps(_mm256_mul_ps(factors, values), shares));
        }
        const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(blended[0], blended[1]), 0xd8);
        const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(levels + i), bytes);
    }
    return i;
}

std::size_t sum_greys_avx2(const std::uint8_t* pixels, std::size_t n, int red, std::uint64_t* sum) {
    __m256i total = _mm256_setzero_si256();
    const __m256i low = _mm256_set1_epi64x(0xffffffff);
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8, pixels += 24) {
        const __m256i grey = greys(channel(pixels, red), channel(pixels, 1), channel(pixels, 2 - red));
        total = _mm256_add_epi64(total, _mm256_add_epi64(_mm256_and_si256(grey, low), _mm256_srli_epi64(grey, 32)));
    }
    std::uint64_t parts[4];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(parts), total);
    *sum += parts[0] + parts[1] + parts[2] + parts[3];
    return i;
}

std::size_t saturate_avx2(std::uint8_t* pixels, std::size_t n, float factor, int red) {
    const __m256 factors = _mm256_set1_ps(factor), grey_factors = _mm256_set1_ps(1.0f - factor);
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8, pixels += 24) {
        const __m256 c[] = {channel(pixels, 0), channel(pixels, 1), channel(pixels, 2)};
        const __m256 grey = _mm256_mul_ps(grey_factors, _mm256_cvtepi32_ps(greys(c[red], c[1], c[2 - red])));
        __m256i out[3];
        for (int k = 0; k < 3; ++k) out[k] = clipped(_mm256_add_ps(_mm256_mul_ps(factors, c[k]), grey));
        store_8(pixels, out[0], out[1], out[2]);
    }
    return i;
}

std::size_t shift_hue_avx2(std::uint8_t* pixels, std::size_t n, float shift, int red) {
    const __m256 zero = _mm256_setzero_ps(), one = _mm256_set1_ps(1), four = _mm256_set1_ps(4), six = _mm256_set1_ps(6);
    const __m256 shifts = _mm256_set1_ps(shift);
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8, pixels += 24) {
        const __m256 r = channel(pixels, red), g = channel(pixels, 1), b = channel(pixels, 2 - red);
        const __m256 value = _mm256_max_ps(r, _mm256_max_ps(g, b));
        const __m256 chroma = _mm256_sub_ps(value, _mm256_min_ps(r, _mm256_min_ps(g, b)));
        const __m256 grey = _mm256_cmp_ps(chroma, zero, _CMP_EQ_OQ);
        const __m256 over = _mm256_div_ps(one, _mm256_blendv_ps(chroma, one, grey));
        const __m256 of_red = _mm256_mul_ps(_mm256_sub_ps(g, b), over);
        const __m256 of_green = _mm256_add_ps(_mm256_set1_ps(2), _mm256_mul_ps(_mm256_sub_ps(b, r), over));
        const __m256 of_blue = _mm256_add_ps(four, _mm256_mul_ps(_mm256_sub_ps(r, g), over));
        __m256 sector = _mm256_blendv_ps(of_blue, of_green, _mm256_cmp_ps(value, g, _CMP_EQ_OQ));
        sector = _mm256_blendv_ps(sector, of_red, _mm256_cmp_ps(value, r, _CMP_EQ_OQ));
        sector = _mm256_add_ps(_mm256_div_ps(sector, six), shifts);
        sector = _mm256_mul_ps(_mm256_sub_ps(sector, _mm256_floor_ps(sector)), six);
        __m256i out[3];
        for (int c = 0; c < 3; ++c) {
            __m256 k = _mm256_add_ps(_mm256_set1_ps(float(5 - 2 * c)), sector);
            k = _mm256_sub_ps(k, _mm256_and_ps(_mm256_cmp_ps(k, six, _CMP_GE_OQ), six));
            const __m256 share = _mm256_min_ps(_mm256_max_ps(_mm256_min_ps(k, _mm256_sub_ps(four, k)), zero), one);
            const __m256 level = _mm256_sub_ps(value, _mm256_mul_ps(chroma, share));
            out[c] = clipped(_mm256_floor_ps(_mm256_add_ps(level, _mm256_set1_ps(0.999f))));
        }
        store_8(pixels, out[red], out[1], out[2 - red]);
    }
    return i;
}

}  // namespace feedline
