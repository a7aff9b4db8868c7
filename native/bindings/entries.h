// SPDX-License-Identifier: Apache-2.0
// Entries of an index, as the bindings of parsers take them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

#include "feedline/ctf.h"

namespace feedline::bindings {

// Returns the number of entries in an array of bytes.
inline std::size_t checked_entries(
    const nanobind::ndarray<const std::uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>& bytes) {
    if (bytes.size() % sizeof(CtfEntry) != 0) throw nanobind::value_error("entries have 24 bytes each");
    if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(CtfEntry) != 0)
        throw nanobind::value_error("entries must be aligned");
    return bytes.size() / sizeof(CtfEntry);
}

}  // namespace feedline::bindings
