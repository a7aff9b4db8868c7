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

// Level of the key under which a block of a mixture is shuffled; docs/explanation/order.md lists the others.
constexpr std::uint64_t kMixtureBlocks = 10;

// A schedule in use, from its place 0 on: what `mixture_schedule` made, and how it is shuffled.
struct MixtureStage {
    const std::int64_t* quotas;   // [sources]
    const std::uint16_t* source;  // [period]
    const std::int32_t* rank;     // [period]
    std::size_t sources, period;
    std::uint64_t seed, stage;    // block b is shuffled under hash_key(seed, stage, kMixtureBlocks, b)
    std::int64_t block;           // places in a block, at least 1 (not shuffled) and below 2^32
    std::int64_t length;          // places in all: the last block may be shorter. Negative: no end.
};

// source[i], item[i] for place first + i: within a block sources change places, and the items of each come in order.
// 0 <= first, first + count <= length. Returns false, with nothing of use written, if a source is not below `sources`.
// O(count + block) time, O(block + sources) memory.
bool mixture_items(const MixtureStage& stage, std::int64_t first, std::size_t count, std::uint16_t* source,
                   std::int64_t* item);

}  // namespace feedline
