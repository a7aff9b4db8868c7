// SPDX-License-Identifier: Apache-2.0
// Boundary arrays (offsets, indptr) as arguments of bindings.
#pragma once

#include <cstdint>
#include <string>

#include "arrays.h"

namespace feedline::bindings {

// Raises unless an array goes from 0 to `end` and never falls. `where` may be empty; `unit` is what `end` counts.
// DataError if it is mapped from a file that was cut.
void check_bounds(const std::string& where, const char* name, const Ints& bounds, std::int64_t end, const char* unit);

}  // namespace feedline::bindings
