// SPDX-License-Identifier: Apache-2.0
// A Python function as a `Reach`.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "feedline/reach.h"

namespace feedline::bindings {

// The function of a Python function, or an empty one for None. May be called without the GIL, and must be destroyed
// with it.
inline Reach reach_of(nanobind::object function) {
    if (function.is_none()) return nullptr;
    return [function = std::move(function)](std::uint64_t begin, std::uint64_t end) {
        const nanobind::gil_scoped_acquire acquired;
        const auto within = nanobind::cast<nanobind::tuple>(function(begin, end));
        return std::pair{nanobind::cast<std::uint64_t>(within[0]), nanobind::cast<std::uint64_t>(within[1])};
    };
}

}  // namespace feedline::bindings
