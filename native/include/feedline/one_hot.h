// SPDX-License-Identifier: Apache-2.0
// The classes of labels that are one-hot vectors.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

// Writes the class of each of `count` rows of `width` elements to `classes`, and returns true. Returns false, with some
// of them written, at the first row that is not zeros and a single 1. No allocation, so rows may be mapped from a file,
// under `guarded`. O(count * width).
bool one_hot_classes(const float* rows, std::size_t count, std::size_t width, std::int64_t* classes);
bool one_hot_classes(const double* rows, std::size_t count, std::size_t width, std::int64_t* classes);

}  // namespace feedline
