// SPDX-License-Identifier: Apache-2.0
// Common code of the bindings of archives, whose sequences are found by their headers.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstring>
#include <utility>
#include <vector>

#include "arrays.h"
#include "reach.h"
#include "unlocked.h"

namespace feedline::bindings {

namespace nb = nanobind;
using namespace nb::literals;

template <class T>
using ArchiveInput = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

inline nb::object bytes_array(const void* from, std::size_t n) {
    const nb::object array = new_array(n, numpy().uint8);
    if (n != 0) std::memcpy(memory(array), from, n);
    return array;
}

// Checks that all samples data[begin[i]:begin[i] + sizes[i]] are within the data.
inline void check_samples(std::size_t bytes, const ArchiveInput<std::int64_t>& begin,
                          const ArchiveInput<std::int64_t>& sizes) {
    const std::size_t n = begin.size();
    if (sizes.size() != n)
        raise<nb::value_error>({"expected `begin` and `sizes` of equal length, got ", n, " and ", sizes.size()});
    for (std::size_t i = 0; i < n; ++i) {
        const std::int64_t at = begin.data()[i], size = sizes.data()[i];
        if (at < 0 || size < 0 || static_cast<std::uint64_t>(at) > bytes ||
            static_cast<std::uint64_t>(size) > bytes - static_cast<std::uint64_t>(at))
            raise<nb::value_error>({"expected samples within the ", bytes, " bytes of data, got ", size, " bytes at ", at});
    }
}

// Binds the methods of any indexer of headers.
template <class Indexer, class Entry, class Error>
void bind_archive_indexer(nb::class_<Indexer>& type) {
    type.def(
            "__init__",
            [](Indexer* self, int descriptor, std::uint64_t size, nb::object reach) {
                new (self) Indexer(descriptor, size, reach_of(std::move(reach)));
            },
            "descriptor"_a, "size"_a, "reach"_a = nb::none(),
            "reach(begin, end), if not None, is called before bytes are read and makes them readable. It returns the\n"
            "range of bytes that may be read until the next call.")
        .def(
            "next",
            [](Indexer& self, std::size_t headers) {
                std::vector<Entry> entries;
                {
                    const Unlocked unlocked;
                    self.next(headers, entries);
                }
                return bytes_array(entries.data(), entries.size() * sizeof(Entry));
            },
            "headers"_a, "Return the entries that the next `headers` headers complete.")
        .def_prop_ro("done", &Indexer::done, "Whether all headers were read.")
        .def_prop_ro(
            "error",
            [](const Indexer& self) -> nb::object {
                if (self.error() == Error::none) return nb::none();
                return nb::make_tuple(static_cast<int>(self.error()), self.error_byte());
            },
            "The first error: (its code, byte from the start of the file), or None.")
        .def_prop_ro("error_number", &Indexer::error_number, "The errno of a failed read.")
        .def_prop_ro("bytes", &Indexer::bytes, "Number of bytes up to which headers were read.");
}

}  // namespace feedline::bindings
