// SPDX-License-Identifier: Apache-2.0
// Reading a file of which parts are still to be fetched.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

namespace feedline {

// What makes bytes of such a file readable: called with the first byte and the end of what is read next, it returns
// between which bytes may be read until the next call. May throw. Empty: all of the file can be read.
using Reach = std::function<std::pair<std::uint64_t, std::uint64_t>(std::uint64_t, std::uint64_t)>;

}  // namespace feedline
