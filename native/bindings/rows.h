// SPDX-License-Identifier: Apache-2.0
// Common code of the bindings of rows and of records: arrays of parsed columns, and indexers.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "entries.h"
#include "feedline/rows.h"
#include "unlocked.h"

namespace feedline::bindings {

namespace nb = nanobind;
using namespace nb::literals;

template <class T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Passes the memory to a numpy array, which then owns it.
template <class T>
nb::object to_array(CtfBytes& bytes) {
    const std::size_t n = bytes.size / sizeof(T);
    if (bytes.data == nullptr) bytes.grow(1);
    auto memory = std::make_unique<CtfBytes>(std::move(bytes));
    memory->trim();
    T* const data = reinterpret_cast<T*>(memory->data);
    nb::capsule owner(memory.get(), [](void* p) noexcept { delete static_cast<CtfBytes*>(p); });
    static_cast<void>(memory.release());
    return nb::cast(nb::ndarray<nb::numpy, T>(data, {n}, owner));
}

using Field = std::tuple<int, std::vector<std::int64_t>, bool, bool>;

inline std::vector<RowField> checked_fields(const std::vector<Field>& declared, std::uint64_t memory_bytes) {
    if (declared.empty() || declared.size() > std::numeric_limits<std::int16_t>::max())
        raise<nb::value_error>({"expected 1 to 32767 fields, got ", declared.size()});
    if (memory_bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        raise<nb::value_error>({"expected memory_bytes below 2**63, got ", memory_bytes});
    std::vector<RowField> fields;
    for (const auto& [type, shape, ragged, optional] : declared) {
        if (type < 0 || type >= kRowTypes)
            raise<nb::value_error>({"expected a type from 0 to ", kRowTypes - 1, ", got ", type});
        for (const std::int64_t dim : shape)
            if (dim < 0) raise<nb::value_error>({"expected dimensions of at least 0, got ", dim});
        if (shape.size() > 32) raise<nb::value_error>({"expected at most 32 dimensions, got ", shape.size()});
        fields.push_back({static_cast<RowType>(type), shape, ragged, optional});
    }
    return fields;
}

constexpr const char* kParseDoc =
    "Parse rows and return (streams, errors).\n\n"
    "Entries are from an indexer. A row is text[start + offset - origin:][:size], so `origin` is the file offset of\n"
    "text[start].\n\n"
    "streams: for each field (values uint8, bounds, offsets, missing). bounds is None except for strings, offsets\n"
    "except for ragged streams. missing: None, or for an optional field int64 pairs of the first missing value and\n"
    "their number, over all samples. errors: uint8 array of 32-byte records, at most one for each row: byte u8 (from text[start]),\n"
    "expected i8, got i8, row u4, stream i2, code u2.";

template <class Parser>
nb::tuple parse(const Parser& self, Input<std::uint8_t> text, std::int64_t start, Input<std::uint8_t> entries,
                std::uint64_t origin) {
    constexpr std::int64_t pad = 64;
    const std::size_t n = checked_entries(entries);
    if (n > std::numeric_limits<std::uint32_t>::max())
        raise<nb::value_error>({"expected fewer than 2**32 rows, got ", n});
    const auto total = static_cast<std::int64_t>(text.size());
    if (start < pad || start > total - pad)
        raise<nb::value_error>({"expected 64 readable bytes before and after the text, got start = ", start, " in ",
                                total, " bytes"});
    RowColumns columns;
    {
        const Unlocked unlocked;
        columns = self.parse({text.data() + start, static_cast<std::size_t>(total - pad - start),
                              reinterpret_cast<const CtfEntry*>(entries.data()), n, origin});
    }
    if (columns.outside) throw nb::value_error("expected rows within the text, got one outside the text");
    nb::list streams;
    for (std::size_t s = 0; s < columns.streams.size(); ++s) {
        RowColumn& c = columns.streams[s];
        nb::object bounds = nb::none(), offsets = nb::none(), missing = nb::none();
        if (c.bounds.size != 0) bounds = to_array<std::int64_t>(c.bounds);
        if (c.offsets.size != 0) offsets = to_array<std::int64_t>(c.offsets);
        if (c.missing.size != 0) missing = to_array<std::int64_t>(c.missing);
        streams.append(nb::make_tuple(to_array<std::uint8_t>(c.values), bounds, offsets, missing));
    }
    return nb::make_tuple(streams, to_array<std::uint8_t>(columns.errors));
}

// Binds the methods of any indexer of rows.
template <class Indexer>
void bind_indexer(nb::class_<Indexer>& type) {
    type.def(
            "feed",
            [](Indexer& self, Input<std::uint8_t> block) {
                CtfBytes entries;
                {
                    const Unlocked unlocked;
                    self.feed(block.data(), block.size(), entries);
                }
                return to_array<std::uint8_t>(entries);
            },
            "block"_a, "Return the entries that `block` (uint8[n]) completes.")
        .def(
            "finish",
            [](Indexer& self) {
                CtfBytes entries;
                self.finish(entries);
                return to_array<std::uint8_t>(entries);
            },
            "Return the entries that the end of the text completes.")
        .def_prop_ro(
            "error",
            [](const Indexer& self) -> nb::object {
                if (self.error() == RowError::none) return nb::none();
                return nb::make_tuple(static_cast<int>(self.error()), self.error_byte());
            },
            "The first error: (code of ROW_ERRORS, byte from the start of the text), or None.")
        .def_prop_ro("has_ids", [](const Indexer&) { return false; }, "Always False, as rows have no ids.")
        .def_prop_ro("lines", &Indexer::lines, "Number of complete lines, or records, so far.")
        .def_prop_ro("bytes", &Indexer::bytes, "Number of bytes fed so far.");
}

}  // namespace feedline::bindings
