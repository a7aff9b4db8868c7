// CNTK 2.7's block randomiser. It draws from one mt19937_64 stream as it goes, so the order of draws below is
// the order itself.
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "feedline/order.h"

namespace feedline {

void cntk_chunk_order(std::uint64_t seed, std::size_t chunks, std::int64_t* out) {
    std::mt19937_64 rng(seed);
    std::iota(out, out + chunks, std::int64_t{0});
    // Every swap draws from the whole range (not Fisher-Yates): slightly uneven, and what CNTK does.
    for (std::size_t i = 0; i < chunks; ++i) std::swap(out[i], out[rng() % chunks]);
}

std::ptrdiff_t cntk_windows_fault(const std::int64_t* begin, const std::int64_t* end, std::size_t chunks) {
    const auto limit = static_cast<std::int64_t>(chunks);
    for (std::int64_t c = 0; c < limit; ++c) {
        const bool contains = 0 <= begin[c] && begin[c] <= c && c < end[c] && end[c] <= limit;
        const bool ascends = c == 0 || (begin[c - 1] <= begin[c] && end[c - 1] <= end[c]);
        if (!contains || !ascends) return c;
    }
    return -1;
}

void cntk_sequence_order(std::uint64_t seed, const std::int64_t* counts, const std::int64_t* begin,
                         const std::int64_t* end, std::size_t chunks, std::int64_t* out) {
    std::vector<std::int64_t> start(chunks + 1, 0);
    for (std::size_t c = 0; c < chunks; ++c) start[c + 1] = start[c] + counts[c];
    const auto total = static_cast<std::size_t>(start[chunks]);
    std::vector<std::uint32_t> chunk_of(total);
    for (std::size_t c = 0; c < chunks; ++c)
        for (std::int64_t t = start[c]; t < start[c + 1]; ++t) chunk_of[t] = static_cast<std::uint32_t>(c);

    std::iota(out, out + total, std::int64_t{0});
    std::mt19937_64 rng(seed);
    const auto may_hold = [&](std::uint32_t position, std::int64_t home) {
        const std::int64_t chunk = chunk_of[home];
        return begin[position] <= chunk && chunk < end[position];
    };
    for (std::size_t t = 0; t < total; ++t) {
        const std::uint32_t c = chunk_of[t];
        const auto low = static_cast<std::uint64_t>(start[begin[c]]);
        const auto range = static_cast<std::uint64_t>(start[end[c]]) - low;
        // j == t always passes: each place only ever holds sequences that its window permits.
        std::uint64_t j = low + rng() % range;
        while (!may_hold(c, out[j]) || !may_hold(chunk_of[j], out[t])) j = low + rng() % range;
        std::swap(out[t], out[j]);
    }
}

CntkNumbers::CntkNumbers(std::uint64_t seed, std::uint64_t position) : rng_(seed) { rng_.discard(position); }

void CntkNumbers::draw(std::size_t count, std::uint64_t* out) {
    for (std::size_t i = 0; i < count; ++i) out[i] = rng_();
}

}  // namespace feedline
