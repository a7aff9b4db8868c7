// Feistel rounds, eight indices at a time. Everything but the entry is static (see CMakeLists.txt).
#include <immintrin.h>

#include "order_rounds.h"

namespace feedline {

static inline __m256i scramble(__m256i v, __m256i key) {
    __m256i z = _mm256_xor_si256(v, key);
    z = _mm256_xor_si256(z, _mm256_srli_epi32(z, 16));
    z = _mm256_mullo_epi32(z, _mm256_set1_epi32(static_cast<int>(0x85ebca6bu)));
    z = _mm256_xor_si256(z, _mm256_srli_epi32(z, 13));
    z = _mm256_mullo_epi32(z, _mm256_set1_epi32(static_cast<int>(0xc2b2ae35u)));
    return _mm256_xor_si256(z, _mm256_srli_epi32(z, 16));
}

void feistel_rounds_avx2(const FeistelRounds& rounds, std::uint32_t* hi, std::uint32_t* lo,
                         std::size_t count) {
    const __m256i mask_hi = _mm256_set1_epi32(static_cast<int>(rounds.mask_hi));
    const __m256i mask_lo = _mm256_set1_epi32(static_cast<int>(rounds.mask_lo));
    __m256i key[6];
    for (int r = 0; r < 6; ++r) key[r] = _mm256_set1_epi32(static_cast<int>(rounds.key[r]));
    for (std::size_t i = 0; i < count; i += kFeistelLanes) {
        auto* high = reinterpret_cast<__m256i*>(hi + i);
        auto* low = reinterpret_cast<__m256i*>(lo + i);
        __m256i h = _mm256_loadu_si256(high);
        __m256i l = _mm256_loadu_si256(low);
        for (int r = 0; r < 6; r += 2) {
            h = _mm256_xor_si256(h, _mm256_and_si256(scramble(l, key[r]), mask_hi));
            l = _mm256_xor_si256(l, _mm256_and_si256(scramble(h, key[r + 1]), mask_lo));
        }
        _mm256_storeu_si256(high, h);
        _mm256_storeu_si256(low, l);
    }
}

}  // namespace feedline
