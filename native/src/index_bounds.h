// SPDX-License-Identifier: Apache-2.0
// The bounds of indices, one function per instruction set. No inline code here: this header is read by files that are
// compiled for different processors.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

// Whether all of indices[n] are in [0, width); 0 < width <= 2^31.
bool all_below_portable(const std::int32_t* indices, std::size_t n, std::uint32_t width);
bool all_below_avx2(const std::int32_t* indices, std::size_t n, std::uint32_t width);

}  // namespace feedline
