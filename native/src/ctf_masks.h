// SPDX-License-Identifier: Apache-2.0
// The positions of newlines, or newlines and pipes: bit i of mask w is for byte 64 * w + i.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

// Fills `words` masks from 64 * words bytes.
using CtfMasks = void (*)(const std::uint8_t* p, std::size_t words, std::uint64_t* masks);

void ctf_newlines_avx2(const std::uint8_t* p, std::size_t words, std::uint64_t* masks);
void ctf_newlines_and_pipes_avx2(const std::uint8_t* p, std::size_t words, std::uint64_t* masks);

}  // namespace feedline
