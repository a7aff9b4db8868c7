// SPDX-License-Identifier: Apache-2.0
// The six Feistel rounds over a block, one function per instruction set. No inline code here: this header is
// read by files that are compiled for different processors.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

constexpr std::size_t kFeistelBlock = 1024;  // indices worked on together; 8 KiB of halves stay in L1
constexpr std::size_t kFeistelLanes = 8;     // blocks are rounded up to this many

struct FeistelRounds {
    std::uint32_t key[6];
    std::uint32_t mask_hi, mask_lo;
    std::uint32_t low_bits;  // width of the low half
};

// In place on hi[count] and lo[count]; count is a multiple of kFeistelLanes.
void feistel_rounds_portable(const FeistelRounds& rounds, std::uint32_t* hi, std::uint32_t* lo,
                             std::size_t count);
void feistel_rounds_avx2(const FeistelRounds& rounds, std::uint32_t* hi, std::uint32_t* lo,
                         std::size_t count);

}  // namespace feedline
