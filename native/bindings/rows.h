// SPDX-License-Identifier: Apache-2.0
// What the bindings of rows and of records share: arrays of parsed columns, and indexers.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <limits>
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

// Hands the memory to a numpy array.
template <class T>
nb::object to_array(CtfBytes& bytes) {
    const std::size_t n = bytes.size / sizeof(T);
    if (bytes.data == nullptr) bytes.grow(1);
    std::uint8_t* data = bytes.release();
    nb::capsule owner(data, [](void* p) noexcept { std::free(p); });
    return nb::cast(nb::ndarray<nb::numpy, T>(reinterpret_cast<T*>(data), {n}, owner));
}

using Field = std::tuple<int, std::vector<std::int64_t>, bool>;

inline std::vector<RowField> checked_fields(const std::vector<Field>& given, std::uint64_t memory_bytes) {
    if (given.empty() || given.size() > std::numeric_limits<std::int16_t>::max())
        throw nb::value_error("1 to 32767 fields");
    if (memory_bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        throw nb::value_error("memory_bytes must fit 63 bits");
    std::vector<RowField> fields;
    for (const auto& [type, shape, ragged] : given) {
        if (type < 0 || type >= kRowTypes) throw nb::value_error("an unknown type");
        for (const std::int64_t dim : shape)
            if (dim < 0) throw nb::value_error("a dimension must be at least 0");
        if (shape.size() > 32) throw nb::value_error("at most 32 dimensions");
        fields.push_back({static_cast<RowType>(type), shape, ragged});
    }
    return fields;
}

constexpr const char* kParseDoc =
    "Parse rows and return (streams, errors). Entries are those of an indexer; a row is\n"
    "text[start + offset - origin:][:size], so that `origin` is the offset of text[start].\n\n"
    "streams: for each field (values uint8, bounds, offsets); bounds of strings, offsets of ragged streams, else\n"
    "None. errors: uint8 array of 32-byte records: byte u8 (from text[start]), expected i8, got i8, row u4, stream\n"
    "i2, code u2; at most one a row.";

template <class Parser>
nb::tuple parse(const Parser& self, Input<std::uint8_t> text, std::int64_t start, Input<std::uint8_t> entries,
                std::uint64_t origin) {
    constexpr std::int64_t pad = 64;
    const std::size_t n = checked_entries(entries);
    if (n > std::numeric_limits<std::uint32_t>::max()) throw nb::value_error("more than 2**32 - 1 rows");
    const auto total = static_cast<std::int64_t>(text.size());
    if (start < pad || start > total - pad)
        throw nb::value_error("64 bytes before `start` and behind the text must be readable");
    RowColumns columns;
    {
        const Unlocked unlocked;
        columns = self.parse({text.data() + start, static_cast<std::size_t>(total - pad - start),
                              reinterpret_cast<const CtfEntry*>(entries.data()), n, origin});
    }
    if (columns.outside) throw nb::value_error("a row lies outside the text");
    nb::list streams;
    for (std::size_t s = 0; s < columns.streams.size(); ++s) {
        RowColumn& c = columns.streams[s];
        nb::object bounds = nb::none(), offsets = nb::none();
        if (c.bounds.size != 0) bounds = to_array<std::int64_t>(c.bounds);
        if (c.offsets.size != 0) offsets = to_array<std::int64_t>(c.offsets);
        streams.append(nb::make_tuple(to_array<std::uint8_t>(c.values), bounds, offsets));
    }
    return nb::make_tuple(streams, to_array<std::uint8_t>(columns.errors));
}

// The methods that every indexer of rows has.
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
        .def_prop_ro("has_ids", [](const Indexer&) { return false; }, "Never: rows have no ids.")
        .def_prop_ro("lines", &Indexer::lines, "Number of complete lines, or records, so far.")
        .def_prop_ro("bytes", &Indexer::bytes, "Number of bytes fed so far.");
}

}  // namespace feedline::bindings
