// SPDX-License-Identifier: Apache-2.0
// Mixtures: which of several sources gives the item at each place, with counts that match the weights everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

// The maximum number of places in a period of a schedule.
constexpr std::size_t kMaxPeriod = std::size_t{1} << 16;

// One period of a schedule, D = sum(quotas) places (1 <= D <= kMaxPeriod, quotas >= 0): source[r] gives the item at
// place r, and rank[r] of its items come before it. Continued periodically, the number of items of source k before any
// place n differs from n * quotas[k] / D by at most 1 - 1/(2K - 2), for K sources with a quota (Tijdeman 1980, "The
// chairman assignment problem"). No schedule has a smaller bound for all weights. Earliest deadline first, ties by
// source. Throws bad_alloc. O(D log K) time, O(D) memory.
void mixture_schedule(const std::int64_t* quotas, std::size_t sources, std::size_t period, std::uint16_t* source,
                      std::int32_t* rank);

// Level of the key under which a block of a mixture is shuffled. docs/explanation/order.md lists all levels.
constexpr std::uint64_t kMixtureBlocks = 10;

// A stage of a mixture: a schedule of `mixture_schedule`, from its place 0 on, and how it is shuffled.
struct MixtureStage {
    const std::int64_t* quotas;   // [sources]
    const std::uint16_t* source;  // [period]
    const std::int32_t* rank;     // [period]
    std::size_t sources, period;
    std::uint64_t seed, stage;    // block b is shuffled under hash_key(seed, stage, kMixtureBlocks, b)
    std::int64_t block;           // places in a block, at least 1 (not shuffled) and below 2^32
    std::int64_t length;          // places in all, so that the last block may be shorter. Negative: no end
};

// Sets source[i] and item[i] of place first + i. Within a block the sources are shuffled, and the items of each stay in
// order. 0 <= first, first + count <= length. Returns false, with outputs undefined, if a source is not below
// `sources`. Throws bad_alloc. O(count + block) time, O(block + sources) memory.
bool mixture_items(const MixtureStage& stage, std::int64_t first, std::size_t count, std::uint16_t* source,
                   std::int64_t* item);

}  // namespace feedline
