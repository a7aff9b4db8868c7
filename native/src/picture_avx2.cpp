// Inner loops of pictures, 8 to 16 numbers at a time. Everything but the entries is static (see CMakeLists.txt).
#include <immintrin.h>

#include "picture_variants.h"

namespace feedline {

static inline __m128i load16(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }

// 16 sums. Pairs of rows are interleaved, so that one instruction multiplies and adds both.
__attribute__((always_inline)) static inline void add_16(const std::uint8_t* const* rows, const std::int16_t* weights, int taps, std::size_t i,
                          std::int16_t* out) {
    constexpr int shift = kWeightBits - kBetweenBits;
    __m256i low = _mm256_set1_epi32(1 << (shift - 1)), high = low;
    for (int t = 0; t < taps; t += 2) {
        const __m128i a = load16(rows[t] + i), b = load16(rows[t + 1] + i);
        std::int32_t two;
        __builtin_memcpy(&two, weights + t, sizeof two);
        const __m256i pair = _mm256_set1_epi32(two);
        low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b)), pair));
        high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b)), pair));
    }
    const __m256i mixed = _mm256_packs_epi32(_mm256_srai_epi32(low, shift), _mm256_srai_epi32(high, shift));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_permute4x64_epi64(mixed, 0xd8));
}

// kTaps: the number of taps if it is known, or 0.
template <int kTaps>
static void add_rows(const std::uint8_t* const* rows, const std::int16_t* weights, int taps, std::size_t n,
                     std::int16_t* out) {
    std::size_t i = 0;
    for (; i + 16 <= n; i += 16) add_16(rows, weights, kTaps != 0 ? kTaps : taps, i, out);
    if (i < n) add_16(rows, weights, kTaps != 0 ? kTaps : taps, n - 16, out);
}

// At least 16 numbers. If their number is no multiple of 16, some of the last ones are computed twice.
void add_rows_avx2(const std::uint8_t* const* rows, const std::int16_t* weights, int taps, std::size_t n,
                   std::int16_t* out) {
    switch (taps) {
        case 2: return add_rows<2>(rows, weights, taps, n, out);
        case 4: return add_rows<4>(rows, weights, taps, n, out);
        default: return add_rows<0>(rows, weights, taps, n, out);
    }
}

// The results of two places, one in each half.
__attribute__((always_inline)) static inline __m256i add_two(const std::int16_t* a, const std::int16_t* b, const std::int32_t* lanes, int pairs) {
    constexpr int shift = kWeightBits + kBetweenBits;
    const __m256i colours = _mm256_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1,  //
                                             0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1);
    __m256i sum = _mm256_set1_epi32(1 << (shift - 1));
    for (int p = 0; p < pairs; ++p, a += 6, b += 6, lanes += 8) {
        const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(a)), load16(b), 1);
        const __m256i weights = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lanes));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(both, colours), weights));
    }
    return _mm256_srai_epi32(sum, shift);
}

// kPairs: the number of pairs if it is known, or 0.
template <int kPairs>
static void add_columns(const std::int16_t* in, const int* first, const std::int32_t* lanes, int num_pairs, int results,
                        std::uint8_t* out) {
    const int pairs = kPairs != 0 ? kPairs : num_pairs;
    const __m128i three = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    for (int k = 0; k < results; k += 4, out += 12, lanes += 16 * pairs) {
        const __m256i even = add_two(in + 3 * std::ptrdiff_t{first[k]}, in + 3 * std::ptrdiff_t{first[k + 1]}, lanes, pairs);
        const __m256i odd =
            add_two(in + 3 * std::ptrdiff_t{first[k + 2]}, in + 3 * std::ptrdiff_t{first[k + 3]}, lanes + 8 * pairs, pairs);
        // Halves hold results k, k + 2 and k + 1, k + 3.
        const __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(even, odd), _mm256_setzero_si256());
        const __m128i four = _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_shuffle_epi8(four, three));
    }
}

void add_columns_avx2(const std::int16_t* in, const int* first, const std::int32_t* lanes, int pairs, int results,
                      std::uint8_t* out) {
    switch (pairs) {
        case 1: return add_columns<1>(in, first, lanes, pairs, results, out);
        case 2: return add_columns<2>(in, first, lanes, pairs, results, out);
        default: return add_columns<0>(in, first, lanes, pairs, results, out);
    }
}

// ---- flips --------------------------------------------------------------------------------------------------

void mirror_row_avx2(const std::uint8_t* from, std::size_t n, std::uint8_t* to) {
    const __m128i five = _mm_setr_epi8(12, 13, 14, 9, 10, 11, 6, 7, 8, 3, 4, 5, 0, 1, 2, -1);
    std::size_t x = 0;
    for (; x + 5 <= n; x += 5)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 3 * x), _mm_shuffle_epi8(load16(from + 3 * (n - 5 - x)), five));
    for (; x < n; ++x)
        for (std::size_t c = 0; c < 3; ++c) to[3 * x + c] = from[3 * (n - 1 - x) + c];
}

// ---- floats -------------------------------------------------------------------------------------------------

static inline __m256 scaled(__m128i eight, __m256 mean, __m256 scale) {
    return _mm256_mul_ps(_mm256_sub_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight)), mean), scale);
}

static void write_planes(const std::uint8_t* pixels, std::size_t n, const float* mean, const float* scale,
                         std::size_t plane, float* out) {
    // The places of a channel's values in bytes 0 to 15, and in bytes 8 to 23, of 8 pixels.
    const __m128i low[] = {_mm_setr_epi8(0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1),
                           _mm_setr_epi8(1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1),
                           _mm_setr_epi8(2, 5, 8, 11, 14, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1)};
    const __m128i high[] = {_mm_setr_epi8(-1, -1, -1, -1, -1, -1, 10, 13, -1, -1, -1, -1, -1, -1, -1, -1),
                            _mm_setr_epi8(-1, -1, -1, -1, -1, 8, 11, 14, -1, -1, -1, -1, -1, -1, -1, -1),
                            _mm_setr_epi8(-1, -1, -1, -1, -1, 9, 12, 15, -1, -1, -1, -1, -1, -1, -1, -1)};
    __m256 shift[3], factor[3];
    for (int c = 0; c < 3; ++c) shift[c] = _mm256_set1_ps(mean[c]), factor[c] = _mm256_set1_ps(scale[c]);
    if (n < 8) {
        for (std::size_t i = 0; i < n; ++i)
            for (std::size_t c = 0; c < 3; ++c) out[c * plane + i] = (float(pixels[3 * i + c]) - mean[c]) * scale[c];
        return;
    }
    for (std::size_t next = 0; next < n; next += 8) {
        const std::size_t i = next + 8 <= n ? next : n - 8;  // some of the last ones are computed twice
        const __m128i a = load16(pixels + 3 * i), b = load16(pixels + 3 * i + 8);
        for (int c = 0; c < 3; ++c) {
            const __m128i eight = _mm_or_si128(_mm_shuffle_epi8(a, low[c]), _mm_shuffle_epi8(b, high[c]));
            _mm256_storeu_ps(out + std::size_t(c) * plane + i, scaled(eight, shift[c], factor[c]));
        }
    }
}

static void write_interleaved(const std::uint8_t* pixels, std::size_t n, const float* mean, const float* scale,
                              float* out) {
    float means[24], scales[24];
    for (int k = 0; k < 24; ++k) means[k] = mean[k % 3], scales[k] = scale[k % 3];
    __m256 shift[3], factor[3];
    for (int k = 0; k < 3; ++k) shift[k] = _mm256_loadu_ps(means + 8 * k), factor[k] = _mm256_loadu_ps(scales + 8 * k);
    std::size_t i = 0;
    for (; i + 24 <= 3 * n; i += 24)
        for (int k = 0; k < 3; ++k) {
            const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(pixels + i + std::size_t(8 * k)));
            _mm256_storeu_ps(out + i + std::size_t(8 * k), scaled(eight, shift[k], factor[k]));
        }
    for (; i < 3 * n; ++i) out[i] = (float(pixels[i]) - mean[i % 3]) * scale[i % 3];
}

void write_floats_avx2(const std::uint8_t* pixels, std::size_t n, const float* mean, const float* scale,
                       std::size_t plane, float* out) {
    if (plane != 0)
        write_planes(pixels, n, mean, scale, plane, out);
    else
        write_interleaved(pixels, n, mean, scale, out);
}

}  // namespace feedline
