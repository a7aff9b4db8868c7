// SPDX-License-Identifier: Apache-2.0
// Entries of an index as arguments of the bindings of parsers.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

#include "arrays.h"
#include "feedline/ctf.h"

namespace feedline::bindings {

// The number of entries in an array of bytes. Throws ValueError for a wrong size or alignment.
inline std::size_t checked_entries(
    const nanobind::ndarray<const std::uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>& bytes) {
    if (bytes.size() % sizeof(CtfEntry) != 0)
        raise<nanobind::value_error>({"expected entries of 24 bytes each, got ", bytes.size(), " bytes"});
    if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(CtfEntry) != 0)
        throw nanobind::value_error("expected aligned entries, got an address that is no multiple of 8");
    return bytes.size() / sizeof(CtfEntry);
}

}  // namespace feedline::bindings
