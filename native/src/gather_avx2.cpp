// The bounds of indices, 32 at a time. Everything but the entry is static (see CMakeLists.txt).
#include <immintrin.h>

#include "index_bounds.h"

namespace feedline {

static inline __m256i load(const std::int32_t* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

// As unsigned numbers negative indices are the greatest, so comparing the greatest one checks both bounds.
bool all_below_avx2(const std::int32_t* indices, std::size_t n, std::uint32_t width) {
    __m256i top[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
    std::size_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (int k = 0; k < 4; ++k) top[k] = _mm256_max_epu32(top[k], load(indices + i + 8 * k));
    for (; i + 8 <= n; i += 8) top[0] = _mm256_max_epu32(top[0], load(indices + i));
    const __m256i all = _mm256_max_epu32(_mm256_max_epu32(top[0], top[1]), _mm256_max_epu32(top[2], top[3]));
    const __m256i last = _mm256_set1_epi32(static_cast<int>(width - 1));
    if (_mm256_movemask_epi8(_mm256_cmpeq_epi32(_mm256_max_epu32(all, last), last)) != -1) return false;
    for (; i < n; ++i)
        if (static_cast<std::uint32_t>(indices[i]) >= width) return false;
    return true;
}

}  // namespace feedline
