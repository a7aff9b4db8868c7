#include "feedline/ctf.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>

#include "arrays.h"
#include "entries.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using feedline::CtfBytes;
using feedline::bindings::raise;
using feedline::bindings::Unlocked;

template <class T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Passes the memory to a numpy array of this shape, which then owns it.
template <class T>
nb::object to_array(CtfBytes& bytes, std::initializer_list<std::size_t> shape) {
    auto memory = std::make_unique<CtfBytes>(std::move(bytes));
    memory->trim();
    T* const data = reinterpret_cast<T*>(memory->data);
    nb::capsule owner(memory.get(), [](void* p) noexcept { delete static_cast<CtfBytes*>(p); });
    static_cast<void>(memory.release());
    return nb::cast(nb::ndarray<nb::numpy, T>(data, shape, owner));
}

// The capsule needs an address even for an empty array.
template <class T>
nb::object to_array(CtfBytes& bytes) {
    const std::size_t n = bytes.size / sizeof(T);
    if (bytes.data == nullptr) bytes.grow(1);
    return to_array<T>(bytes, {n});
}

std::string bytes_of(const nb::bytes& b) { return std::string(b.c_str(), b.size()); }

void check_name(const std::string& name) {
    if (name.empty()) throw nb::value_error("expected a field name of at least 1 byte, got none");
    if (name[0] == '#')
        raise<nb::value_error>({"expected a field name that does not begin with '#', as a comment does, got '", name,
                                "'"});
    for (const unsigned char c : name) {
        if (c <= ' ' || c >= 0x80 || c == '|')
            raise<nb::value_error>({"expected a field name of printable ASCII bytes other than blank and '|', got byte ",
                                    c, " in it"});
    }
}

feedline::CtfIndexer make_indexer(std::optional<nb::bytes> size_stream, bool skip_ids, bool lenient) {
    std::string name;
    if (size_stream) {
        name = bytes_of(*size_stream);
        check_name(name);
    }
    return feedline::CtfIndexer(std::move(name), skip_ids, lenient);
}

nb::object feed(feedline::CtfIndexer& self, Input<std::uint8_t> block) {
    CtfBytes entries;
    {
        const Unlocked unlocked;
        self.feed(block.data(), block.size(), entries);
    }
    return to_array<std::uint8_t>(entries);
}

nb::object finish(feedline::CtfIndexer& self) {
    CtfBytes entries;
    self.finish(entries);
    return to_array<std::uint8_t>(entries);
}

nb::object error(const feedline::CtfIndexer& self) {
    if (self.error() == feedline::CtfError::none) return nb::none();
    return nb::make_tuple(static_cast<int>(self.error()), self.error_byte());
}

feedline::CtfParser make_parser(const std::vector<nb::bytes>& names, const std::vector<std::int64_t>& dims,
                                const std::vector<bool>& sparse, const std::vector<bool>& float64,
                                const std::vector<int>& fill, int size_stream, bool lenient,
                                std::uint64_t memory_bytes) {
    const std::size_t n = names.size();
    if (n == 0 || n > std::numeric_limits<std::int16_t>::max())
        raise<nb::value_error>({"expected 1 to 32767 fields, got ", n});
    if (dims.size() != n || sparse.size() != n || float64.size() != n || fill.size() != n)
        raise<nb::value_error>({"expected `fields`, `dims`, `sparse`, `float64` and `fill` of equal length, got ", n,
                                ", ", dims.size(), ", ", sparse.size(), ", ", float64.size(), " and ", fill.size()});
    if (size_stream < -1 || size_stream >= static_cast<int>(n))
        raise<nb::value_error>({"expected size_stream to be the index of one of ", n, " fields, or -1, got ",
                                size_stream});
    if (memory_bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        raise<nb::value_error>({"expected memory_bytes below 2**63, got ", memory_bytes});
    std::vector<feedline::CtfField> fields;
    for (std::size_t i = 0; i < n; ++i) {
        std::string name = bytes_of(names[i]);
        check_name(name);
        for (const auto& other : fields)
            if (other.name == name)
                raise<nb::value_error>({"expected distinct fields, got two streams that read '", name, "'"});
        if (dims[i] < 1 || dims[i] > std::numeric_limits<std::int32_t>::max())
            raise<nb::value_error>({"expected dimensions from 1 to 2**31 - 1, got ", dims[i], " for '", name, "'"});
        if (fill[i] < 0 || fill[i] > 2)
            raise<nb::value_error>({"expected fill to be 0, 1 or 2, got ", fill[i], " for '", name, "'"});
        fields.push_back(
            {std::move(name), dims[i], sparse[i], float64[i], static_cast<feedline::CtfFill>(fill[i])});
    }
    return feedline::CtfParser(std::move(fields), size_stream, lenient, memory_bytes);
}

nb::tuple parse(const feedline::CtfParser& self, Input<std::uint8_t> text, std::int64_t start,
                Input<std::uint8_t> entries, std::uint64_t origin, std::int64_t allowed_errors) {
    constexpr std::int64_t pad = 64;
    const std::size_t n = feedline::bindings::checked_entries(entries);
    if (n > std::numeric_limits<std::uint32_t>::max())
        raise<nb::value_error>({"expected fewer than 2**32 sequences, got ", n});
    const auto total = static_cast<std::int64_t>(text.size());
    if (start < pad || start > total - pad)
        raise<nb::value_error>({"expected 64 readable bytes before and after the text, got start = ", start, " in ",
                                total, " bytes"});
    feedline::CtfColumns columns;
    {
        const Unlocked unlocked;
        columns = self.parse(text.data() + start, static_cast<std::size_t>(total - pad - start),
                             reinterpret_cast<const feedline::CtfEntry*>(entries.data()), n, origin, allowed_errors);
    }
    if (columns.outside) throw nb::value_error("expected sequences within the text, got one outside the text");
    nb::list streams;
    for (std::size_t s = 0; s < columns.streams.size(); ++s) {
        feedline::CtfColumn& column = columns.streams[s];
        const feedline::CtfField& field = self.fields()[s];
        nb::object offsets = nb::none();
        if (column.offsets.size > 0) offsets = to_array<std::int64_t>(column.offsets);
        nb::object missing = nb::none();
        if (column.missing.size > 0) missing = to_array<std::int64_t>(column.missing);
        if (field.sparse) {
            nb::object indptr = to_array<std::int64_t>(column.indptr);
            nb::object indices = to_array<std::int32_t>(column.indices);
            nb::object values =
                field.float64 ? to_array<double>(column.values) : to_array<float>(column.values);
            streams.append(nb::make_tuple(indptr, indices, values, offsets, missing));
        } else {
            const std::size_t rows = column.samples, dim = static_cast<std::size_t>(field.dim);
            if (column.values.data == nullptr) column.values.grow(1);
            nb::object values = field.float64 ? to_array<double>(column.values, {rows, dim})
                                              : to_array<float>(column.values, {rows, dim});
            streams.append(nb::make_tuple(values, offsets, missing));
        }
    }
    nb::object valid = nb::none();
    if (columns.valid.size > 0) valid = to_array<std::uint8_t>(columns.valid);
    return nb::make_tuple(streams, valid, to_array<std::uint8_t>(columns.errors), columns.errors_left);
}

nb::dict error_codes() {
    using feedline::CtfError;
    const std::pair<const char*, CtfError> codes[] = {
        {"empty_input", CtfError::empty_input},
        {"utf16_input", CtfError::utf16_input},
        {"no_sequence_id", CtfError::no_sequence_id},
        {"id_overflow", CtfError::id_overflow},
        {"sequence_too_long", CtfError::sequence_too_long},
        {"unexpected_byte", CtfError::unexpected_byte},
        {"bad_name", CtfError::bad_name},
        {"empty_row", CtfError::empty_row},
        {"too_many_values", CtfError::too_many_values},
        {"bad_number", CtfError::bad_number},
        {"bad_index", CtfError::bad_index},
        {"index_too_large", CtfError::index_too_large},
        {"no_colon", CtfError::no_colon},
        {"missing_stream", CtfError::missing_stream},
        {"too_many_samples", CtfError::too_many_samples},
        {"too_few_samples", CtfError::too_few_samples},
        {"size_mismatch", CtfError::size_mismatch},
        {"too_few_values", CtfError::too_few_values},
        {"memory_limit", CtfError::memory_limit},
        {"errors_exhausted", CtfError::errors_exhausted},
    };
    nb::dict result;
    for (const auto& [name, code] : codes) result[name] = static_cast<int>(code);
    return result;
}

}  // namespace

void bind_ctf(nb::module_& m) {
    m.attr("CTF_ERRORS") = error_codes();

    nb::class_<feedline::CtfIndexer>(
        m, "CtfIndexer",
        "Finds the sequences of a CTF file that is fed block by block. Not thread-safe.\n\n"
        "Entries are uint8 arrays of 24-byte records: key u8, offset u8, size u4, samples u4.")
        .def(nb::new_(&make_indexer), "size_stream"_a.none(), "skip_ids"_a = false, "lenient"_a = false)
        .def("feed", &feed, "block"_a, "Return the entries that `block` (uint8[n]) completes.")
        .def("finish", &finish, "Return the entries that the end of the file completes.")
        .def_prop_ro("error", &error,
                     "The first error: (code of CTF_ERRORS, byte from the start of the file), or None.")
        .def_prop_ro("has_ids", &feedline::CtfIndexer::has_ids,
                     "Whether sequences are delimited by ids, not by lines.")
        .def_prop_ro("lines", &feedline::CtfIndexer::lines,
                     "Number of complete lines so far. After finish(), of all lines.")
        .def_prop_ro("bytes", &feedline::CtfIndexer::bytes, "Number of bytes fed so far.");

    nb::class_<feedline::CtfParser>(
        m, "CtfParser",
        "Parses the sequences of a chunk of CTF text into columns. Immutable and thread-safe.\n\n"
        "fill: for each field 0, 1 to pad dense samples with zeros, or 2 also to fill fields that a sequence lacks.")
        .def(nb::new_(&make_parser), "fields"_a, "dims"_a, "sparse"_a, "float64"_a, "fill"_a,
             "size_stream"_a = -1, "lenient"_a = false, nb::kw_only(), "memory_bytes"_a)
        .def("parse", &parse, "text"_a, "start"_a, "entries"_a, "origin"_a, "allowed_errors"_a = -1,
             "Parse sequences and return (streams, valid, errors, errors_left).\n\n"
             "Entries are from `CtfIndexer`. A sequence is text[start + offset - origin:][:size], so `origin` is the\n"
             "file offset of text[start].\n\n"
             "streams: for each field (rows (N, dim), offsets, missing) or, if sparse, (indptr, indices, values,\n"
             "offsets, missing). offsets is None if each sequence has one sample. missing: None, or for a field with\n"
             "fill 2 int64 pairs of the first missing value (of a sparse field: sample) and their number. valid: uint8[sequences], or None if all are valid.\n"
             "errors: uint8 array of 32-byte records: byte u8, expected i8, got i8, sequence u4, stream i2, code\n"
             "u2.");
}
