// SPDX-License-Identifier: Apache-2.0
// The variants of crc32c(). They update the inverted register in terms of which the algorithm is defined.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

std::uint32_t crc32c_update_portable(std::uint32_t state, const std::uint8_t* p, std::size_t n);
std::uint32_t crc32c_update_sse42(std::uint32_t state, const std::uint8_t* p, std::size_t n);
std::uint32_t crc32c_update_armv8(std::uint32_t state, const std::uint8_t* p, std::size_t n);

}  // namespace feedline
