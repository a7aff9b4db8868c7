// SPDX-License-Identifier: Apache-2.0
// Orders: which sequence is at place t. Pure functions of their arguments, with the same bits on every machine.
// docs/explanation/order.md specifies them, and saved states depend on them, so they never change. All arithmetic is
// modulo 2^64 unless a comment names another modulus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

namespace feedline {

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;

// splitmix64's finaliser: a bijection of 64-bit words in which every input bit moves every output bit.
constexpr std::uint64_t mix64(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// A key from words such as (seed, sweep, level). They are hashed, never added, so neighbouring seeds share nothing.
// O(count).
std::uint64_t hash_key(const std::uint64_t* words, std::size_t count);

// A permutation of 0..n-1 in out[n] by Fisher-Yates with a counter-based generator. O(n) time, no memory
// beyond out.
void fisher_yates(std::uint64_t key, std::uint32_t n, std::uint32_t* out);

constexpr std::uint64_t kFeistelLimit = std::uint64_t{1} << 40;

// out[k] = image of first+k under a permutation of 0..n-1 (1 <= n <= kFeistelLimit, first+count <= n) that is never
// stored: a Feistel network on the bits of n-1, applied again while the result is not below n. O(count) expected time
// (fewer than 2 applications per index on average), O(1) memory.
void feistel(std::uint64_t key, std::uint64_t n, std::uint64_t first, std::size_t count, std::int64_t* out);

// out[k] = fingerprint after ordinals[0..k], starting from h. Each depends on the one before, so the latency of the
// hash bounds the speed. O(count).
void fingerprint(std::uint64_t h, const std::int64_t* ordinals, std::size_t count, std::uint64_t* out);

// For each place t[k]: the last slot with starts[slot] <= t[k], and the distance from there. `starts` has slots+1
// ascending places, of which the last is the end. Returns the first k whose t[k] is outside [starts[0], starts[slots]),
// with nothing written, or -1 when all are inside. Reads only inside `starts`, even if it does not ascend.
// O(count log slots).
std::ptrdiff_t locate(const std::int64_t* starts, std::size_t slots, const std::int64_t* t, std::size_t count,
                      std::uint32_t* slot, std::int64_t* index);
std::ptrdiff_t locate(const std::int64_t* starts, std::size_t slots, const std::uint32_t* t,
                      std::size_t count, std::uint32_t* slot, std::int64_t* index);

// CNTK 2.7's order of chunks in a sweep: `seed` is the randomization seed plus the sweep. O(chunks).
void cntk_chunk_order(std::uint64_t seed, std::size_t chunks, std::int64_t* out);

// CNTK 2.7's order of sequences in a sweep, over randomised chunk positions 0..chunks-1 with counts[c]
// sequences each: out[t] = original position of the sequence delivered at t, both counted along the concatenated
// randomised chunks. A sequence of position c may only move inside chunks [begin[c], end[c]).
//
// Preconditions (see cntk_windows_fault): counts >= 0, sum(counts) is the size of out, chunks < 2^32, windows contain
// their own position and ascend. So a draw that leaves a sequence in place is always permitted, and the rejection loop
// ends with probability one. Expected O(total * range) draws at worst, O(total) for CNTK's own windows. Throws
// bad_alloc.
void cntk_sequence_order(std::uint64_t seed, const std::int64_t* counts, const std::int64_t* begin,
                         const std::int64_t* end, std::size_t chunks, std::int64_t* out);

// The numbers of mt19937_64 from a seed, after the first `position`. CNTK draws initial parameters and its random operations'
// numbers from them. O(position) to construct and O(count) to draw, about 2 ns each.
class CntkNumbers {
public:
    CntkNumbers(std::uint64_t seed, std::uint64_t position);
    void draw(std::size_t count, std::uint64_t* out);

private:
    std::mt19937_64 rng_;
};

// The first position that breaks `begin <= c < end <= chunks`, or whose window starts or ends before its
// predecessor's; -1 when there is none. O(chunks).
std::ptrdiff_t cntk_windows_fault(const std::int64_t* begin, const std::int64_t* end, std::size_t chunks);

}  // namespace feedline
