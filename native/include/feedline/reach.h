// SPDX-License-Identifier: Apache-2.0
// Reads of a file of which parts have yet to be fetched.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

namespace feedline {

// A function that makes bytes [begin, end) of such a file readable, called before they are read. It returns the range
// of bytes, which includes these, that may be read until the next call. May throw. Empty: all of the file can be read.
using Reach = std::function<std::pair<std::uint64_t, std::uint64_t>(std::uint64_t, std::uint64_t)>;

}  // namespace feedline
