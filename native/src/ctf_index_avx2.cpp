#include <immintrin.h>

#include "ctf_masks.h"

namespace feedline {

static inline std::uint64_t equal_mask(__m256i low, __m256i high, __m256i byte) {
    const auto a = static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(low, byte)));
    const auto b = static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(high, byte)));
    return static_cast<std::uint64_t>(b) << 32 | a;
}

void ctf_newlines_avx2(const std::uint8_t* p, std::size_t words, std::uint64_t* masks) {
    const __m256i newline = _mm256_set1_epi8('\n');
    for (std::size_t w = 0; w < words; ++w, p += 64) {
        masks[w] = equal_mask(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
                              _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32)), newline);
    }
}

void ctf_newlines_and_pipes_avx2(const std::uint8_t* p, std::size_t words, std::uint64_t* masks) {
    const __m256i newline = _mm256_set1_epi8('\n'), pipe = _mm256_set1_epi8('|');
    for (std::size_t w = 0; w < words; ++w, p += 64) {
        const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
        masks[w] = equal_mask(low, high, newline) | equal_mask(low, high, pipe);
    }
}

}  // namespace feedline
