#include "feedline/mixture.h"

#include "feedline/order.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <vector>

namespace feedline {

namespace {

constexpr std::uint32_t kNone = ~std::uint32_t{0};

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return a / b + (a % b > 0); }

}  // namespace

void mixture_schedule(const std::int64_t* quotas, std::size_t sources, std::size_t period, std::uint16_t* source,
                      std::int32_t* rank) {
    const auto places = static_cast<std::int64_t>(period);
    const auto used = std::count_if(quotas, quotas + sources, [](std::int64_t q) { return q > 0; });
    // Tijdeman's delta is numerator/denominator. Item j of a source of weight w may be at place n once
    // (n + 1) w - j >= delta, and must be before the first place t with t w - j > 1 - delta.
    const std::int64_t numerator = used > 1 ? 1 : 0, denominator = used > 1 ? 2 * (used - 1) : 1;
    const auto release = [&](std::size_t k, std::int64_t j) {
        return std::max<std::int64_t>(
            0, divide_up((j * denominator + numerator) * places, quotas[k] * denominator) - 1);
    };
    const auto deadline = [&](std::size_t k, std::int64_t j) {
        return ((j + 1) * denominator - numerator) * places / (quotas[k] * denominator) + 1;
    };

    // Each source waits for the release of its next item. These are lists of sources by the place of the release.
    std::vector<std::uint32_t> waiting(period, kNone), next(sources, kNone);
    std::vector<std::int32_t> num_given(sources, 0);
    const auto wait = [&](std::size_t k, std::int64_t place) {
        next[k] = waiting[static_cast<std::size_t>(place)];
        waiting[static_cast<std::size_t>(place)] = static_cast<std::uint32_t>(k);
    };
    for (std::size_t k = 0; k < sources; ++k)
        if (quotas[k] > 0) wait(k, release(k, 0));

    // Deadline, then source. Deadlines fit 32 bits, as they are at most one period past the end.
    std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> ready;
    for (std::int64_t n = 0; n < places; ++n) {
        for (std::uint32_t k = waiting[static_cast<std::size_t>(n)]; k != kNone; k = next[k])
            ready.push(static_cast<std::uint64_t>(deadline(k, num_given[k])) << 32 | k);
        const auto k = static_cast<std::uint32_t>(ready.top());  // never empty, by the theorem
        ready.pop();
        const std::int32_t j = num_given[k]++;
        source[n] = static_cast<std::uint16_t>(k);
        rank[n] = j;
        if (j + 1 < quotas[k]) wait(k, std::max(n + 1, release(k, j + 1)));
    }
}

bool mixture_items(const MixtureStage& stage, std::int64_t first, std::size_t count, std::uint16_t* source,
                   std::int64_t* item) {
    const auto period = static_cast<std::int64_t>(stage.period);
    const std::int64_t stop = first + static_cast<std::int64_t>(count);
    const auto item_at = [&](std::int64_t n) {
        const auto r = static_cast<std::size_t>(n % period);
        return n / period * stage.quotas[stage.source[r]] + stage.rank[r];
    };
    if (stage.block == 1) {
        for (std::int64_t n = first; n < stop; ++n) {
            const std::uint16_t k = stage.source[n % period];
            if (k >= stage.sources) return false;
            source[n - first] = k;
            item[n - first] = item_at(n);
        }
        return true;
    }
    std::vector<std::uint32_t> shuffled;
    std::vector<std::int64_t> next(stage.sources), seen(stage.sources, -1);
    for (std::int64_t block = first / stage.block; block * stage.block < stop; ++block) {
        const std::int64_t a = block * stage.block;
        const std::int64_t b = stage.length < 0 ? a + stage.block : std::min(a + stage.block, stage.length);
        const auto places = static_cast<std::uint32_t>(b - a);
        const std::uint64_t words[] = {stage.seed, stage.stage, kMixtureBlocks, static_cast<std::uint64_t>(block)};
        shuffled.resize(places);
        fisher_yates(hash_key(words, 4), places, shuffled.data());
        const std::int64_t start = a % period;  // a division costs more than the rest of the loop
        std::int64_t r = start;
        for (std::int64_t n = a; n < b; ++n) {
            const std::size_t k = stage.source[r];
            if (k >= stage.sources) return false;
            if (seen[k] != block) {
                seen[k] = block;
                next[k] = item_at(n);
            }
            if (++r == period) r = 0;
        }
        for (std::uint32_t i = 0; i < places && a + i < stop; ++i) {
            const std::int64_t unshuffled = start + shuffled[i];
            const std::uint16_t k = stage.source[unshuffled < period ? unshuffled : unshuffled % period];
            const std::int64_t number = next[k]++;
            if (a + i < first) continue;
            source[a + i - first] = k;
            item[a + i - first] = number;
        }
    }
    return true;
}

}  // namespace feedline
