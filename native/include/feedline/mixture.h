// SPDX-License-Identifier: Apache-2.0
// Mixtures: which of several sources stands at each place, so that every source is where its weight wants it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

// Places in a period of a schedule, at most.
constexpr std::size_t kLongestPeriod = std::size_t{1} << 16;

// One period of a schedule: source[r] stands at place r, and rank[r] of its items stand before, for D = sum(quotas)
// places (1 <= D <= kLongestPeriod, quotas >= 0). Continued periodically, the items of source k before any place n
// differ from n * quotas[k] / D by at most 1 - 1/(2K - 2), for K sources with a quota (Tijdeman 1980, "The chairman
// assignment problem"): no schedule does better for all weights. Earliest deadline first, ties by source. O(D log K)
// time, O(D) memory.
void mixture_schedule(const std::int64_t* quotas, std::size_t sources, std::size_t period, std::uint16_t* source,
                      std::int32_t* rank);

}  // namespace feedline
