// SPDX-License-Identifier: Apache-2.0
// Boundary arrays (offsets, indptr) as arguments of bindings.
#pragma once

#include <cstdint>
#include <string>

#include "arrays.h"

namespace feedline::bindings {

// Throws ValueError unless an array begins at 0, never decreases, and ends at `end`, a number of `unit`. `where` opens
// the message, and may be empty. DataError if the array is mapped from a file that was truncated.
void check_bounds(const std::string& where, const char* name, const Ints& bounds, std::int64_t end, const char* unit);

}  // namespace feedline::bindings
