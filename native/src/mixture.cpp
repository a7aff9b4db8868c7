#include "feedline/mixture.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <vector>

namespace feedline {

namespace {

constexpr std::uint32_t kNone = ~std::uint32_t{0};

std::int64_t divided_up(std::int64_t a, std::int64_t b) { return a / b + (a % b > 0); }

}  // namespace

void mixture_schedule(const std::int64_t* quotas, std::size_t sources, std::size_t period, std::uint16_t* source,
                      std::int32_t* rank) {
    const auto places = static_cast<std::int64_t>(period);
    const auto used = std::count_if(quotas, quotas + sources, [](std::int64_t q) { return q > 0; });
    // Tijdeman's delta is one/two. Item j of a source of weight w may stand at place n once (n + 1) w - j >= delta, and
    // has to stand before the first place t with t w - j > 1 - delta.
    const std::int64_t one = used > 1 ? 1 : 0, two = used > 1 ? 2 * (used - 1) : 1;
    const auto release = [&](std::size_t k, std::int64_t j) {
        return std::max<std::int64_t>(0, divided_up((j * two + one) * places, quotas[k] * two) - 1);
    };
    const auto deadline = [&](std::size_t k, std::int64_t j) {
        return ((j + 1) * two - one) * places / (quotas[k] * two) + 1;
    };

    // A source waits for one item at a time: lists of sources by the place at which theirs is released.
    std::vector<std::uint32_t> waiting(period, kNone), next(sources, kNone);
    std::vector<std::int32_t> given(sources, 0);
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
            ready.push(static_cast<std::uint64_t>(deadline(k, given[k])) << 32 | k);
        const auto k = static_cast<std::uint32_t>(ready.top());  // never empty, by the theorem
        ready.pop();
        const std::int32_t j = given[k]++;
        source[n] = static_cast<std::uint16_t>(k);
        rank[n] = j;
        if (j + 1 < quotas[k]) wait(k, std::max(n + 1, release(k, j + 1)));
    }
}

}  // namespace feedline
