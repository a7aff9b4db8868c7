// SPDX-License-Identifier: Apache-2.0
// Classes of one-hot rows: what a label says, where a network is given it as a vector.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

// Writes the class of each of `count` rows of `width` elements to `classes` and returns true; returns false, with some
// of them written, at the first row that is not zeros and a single 1. O(count * width), no allocation; rows may be
// mapped from a file, under `guarded`.
bool one_hot_classes(const float* rows, std::size_t count, std::size_t width, std::int64_t* classes);
bool one_hot_classes(const double* rows, std::size_t count, std::size_t width, std::int64_t* classes);

}  // namespace feedline
