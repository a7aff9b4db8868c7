#include "rows.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "feedline/inflate.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using feedline::bindings::checked_fields;
using feedline::bindings::Field;
using feedline::bindings::Input;
using feedline::bindings::kParseDoc;
using feedline::bindings::parse;
using feedline::bindings::raise;
using feedline::bindings::Unlocked;

using Output = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

feedline::JsonPath checked_path(const std::vector<std::optional<nb::bytes>>& keys, bool ragged) {
    feedline::JsonPath path;
    std::size_t lists = 0;
    for (const auto& key : keys) {
        lists += !key;
        path.emplace_back();
        if (key) path.back() = std::string(key->c_str(), key->size());
    }
    if (path.empty() || !path.front()) throw nb::value_error("expected paths that begin with a key, got another one");
    if (lists > 1) throw nb::value_error("expected paths to the items of one list at most, got several lists");
    if (lists == 1 && !ragged) throw nb::value_error("expected a ragged field for the items of a list, got one that is not");
    return path;
}

std::shared_ptr<feedline::JsonParser> make_json(const std::vector<Field>& declared,
                                                const std::vector<std::vector<std::optional<nb::bytes>>>& keys,
                                                std::uint64_t memory_bytes) {
    auto fields = checked_fields(declared, memory_bytes);
    if (keys.size() != fields.size()) 
        raise<nb::value_error>({"expected one path for each of ", fields.size(), " fields, got ", keys.size()});
    std::vector<feedline::JsonPath> paths;
    for (std::size_t a = 0; a < keys.size(); ++a) paths.push_back(checked_path(keys[a], fields[a].ragged));
    for (std::size_t a = 0; a < paths.size(); ++a) {
        for (std::size_t b = 0; b < a; ++b) {
            const auto [from, other] = std::mismatch(paths[a].begin(), paths[a].end(), paths[b].begin(), paths[b].end());
            if (from == paths[a].end() || other == paths[b].end())
                throw nb::value_error("expected paths of which none begins with another, got one that does");
            if (from->has_value() != other->has_value())
                throw nb::value_error("expected a key to lead to a list or to an object, got paths of both");
        }
    }
    return std::make_shared<feedline::JsonParser>(std::move(fields), std::move(paths), memory_bytes);
}

feedline::CsvParser make_csv(const std::vector<Field>& declared,
                             const std::vector<std::pair<std::int32_t, std::int64_t>>& columns, std::uint8_t delimiter,
                             std::uint64_t memory_bytes) {
    auto fields = checked_fields(declared, memory_bytes);
    std::vector<std::int64_t> cells(fields.size(), 0), sizes;
    for (const auto& field : fields) {
        std::int64_t size = 1;
        for (const std::int64_t dim : field.shape)
            if (__builtin_mul_overflow(size, dim, &size))
                throw nb::value_error("expected samples of fewer than 2**63 values, got a larger shape");
        sizes.push_back(size);
        if (field.ragged) throw nb::value_error("expected one sample per row, got a ragged field");
    }
    std::vector<feedline::CsvTarget> targets;
    for (const auto& [stream, place] : columns) {
        if (stream >= static_cast<std::int64_t>(fields.size()) || stream < -1)
            raise<nb::value_error>({"expected the index of one of ", fields.size(), " fields, or -1, got ", stream});
        if (stream >= 0) {
            if (place < 0 || place >= sizes[stream])
                raise<nb::value_error>({"expected a place from 0 to below ", sizes[stream], ", got ", place});
            ++cells[stream];
        }
        targets.push_back({stream, place});
    }
    for (std::size_t s = 0; s < fields.size(); ++s)
        if (cells[s] != sizes[s])
            raise<nb::value_error>({"expected ", sizes[s], " columns for field ", s, ", got ", cells[s]});
    if (delimiter == '"' || delimiter == '\n' || delimiter == '\r' || delimiter >= 0x80)
        raise<nb::value_error>({"expected an ASCII delimiter other than a quote or an end of line, got byte ",
                                delimiter});
    return feedline::CsvParser(std::move(fields), std::move(targets), delimiter, memory_bytes);
}

nb::dict error_codes() {
    using feedline::RowError;
    const std::pair<const char*, RowError> codes[] = {
        {"utf16_input", RowError::utf16_input},
        {"row_too_long", RowError::row_too_long},
        {"not_an_object", RowError::not_an_object},
        {"syntax", RowError::syntax},
        {"missing", RowError::missing},
        {"twice", RowError::twice},
        {"null_value", RowError::null_value},
        {"wrong_type", RowError::wrong_type},
        {"out_of_range", RowError::out_of_range},
        {"too_many_values", RowError::too_many_values},
        {"too_few_values", RowError::too_few_values},
        {"bad_string", RowError::bad_string},
        {"bad_text", RowError::bad_text},
        {"too_deep", RowError::too_deep},
        {"too_many_cells", RowError::too_many_cells},
        {"too_few_cells", RowError::too_few_cells},
        {"empty_cell", RowError::empty_cell},
        {"bad_cell", RowError::bad_cell},
        {"open_quote", RowError::open_quote},
        {"cell_range", RowError::cell_range},
        {"cell_text", RowError::cell_text},
        {"cell_return", RowError::cell_return},
        {"memory_limit", RowError::memory_limit},
        {"record_cut", RowError::record_cut},
        {"length_crc", RowError::length_crc},
        {"message_crc", RowError::message_crc},
        {"record_too_long", RowError::record_too_long},
        {"bad_message", RowError::bad_message},
        {"feature_kind", RowError::feature_kind},
        {"uneven_values", RowError::uneven_values},
    };
    nb::dict result;
    for (const auto& [name, code] : codes) result[name] = static_cast<int>(code);
    return result;
}

nb::tuple inflate(feedline::Inflater& self, Input<std::uint8_t> in, std::size_t start, std::size_t stop, bool last,
                  Output out, std::size_t position, std::size_t point_after) {
    if (start > stop || stop > in.size()) 
        raise<nb::value_error>({"expected 0 <= start <= stop <= ", in.size(), ", got ", start, " and ", stop});
    if (position > out.size())
        raise<nb::value_error>({"expected a position of at most ", out.size(), ", got ", position});
    feedline::Inflater::Result result{};
    {
        const Unlocked unlocked;
        result = self.run(in.data() + start, stop - start, last, out.data(), position, out.size(), point_after);
    }
    return nb::make_tuple(static_cast<int>(result.status), result.consumed, result.position, result.member);
}

}  // namespace

void bind_rows(nb::module_& m) {
    m.attr("ROW_ERRORS") = error_codes();

    nb::class_<feedline::JsonParser>(m, "JsonParser",
                                     "Parses rows that are JSON objects. Immutable and thread-safe.\n\n"
                                     "fields: (type, shape, ragged, optional). paths: for each field the keys that lead to it.\n"
                                     "After a key, None stands for each item of its list.")
        .def(nb::new_(&make_json), "fields"_a, "paths"_a, "memory_bytes"_a)
        .def("parse", &parse<feedline::JsonParser>, "text"_a, "start"_a, "entries"_a, "origin"_a, kParseDoc);
    nb::class_<feedline::CsvParser>(m, "CsvParser",
                                    "Parses rows of cells. Immutable and thread-safe.\n\n"
                                    "columns: (field, or -1 to skip the column, place of its value in the sample).")
        .def(nb::new_(&make_csv), "fields"_a, "columns"_a, "delimiter"_a, "memory_bytes"_a)
        .def("parse", &parse<feedline::CsvParser>, "text"_a, "start"_a, "entries"_a, "origin"_a, kParseDoc);
    nb::class_<feedline::RowIndexer> indexer(
        m, "RowIndexer",
        "Finds the rows of a text that is fed block by block. Not thread-safe.\n\n"
        "Entries are uint8 arrays of 24-byte records: line u8, offset u8, size u4, samples u4.");
    feedline::bindings::bind_indexer(indexer);
    indexer
        .def_static(
            "json",
            [](std::shared_ptr<feedline::JsonParser> parser, int size_stream, std::uint64_t max_bytes) {
                if (parser != nullptr && size_stream >= static_cast<int>(parser->fields().size()))
                    raise<nb::value_error>({"expected size_stream to be the index of one of ", parser->fields().size(),
                                            " fields, or -1, got ", size_stream});
                return feedline::RowIndexer(std::move(parser), size_stream, max_bytes);
            },
            "parser"_a.none(), "size_stream"_a, "max_bytes"_a,
            "Return an indexer of lines of at most `max_bytes`. With a parser it counts samples.")
        .def_static(
            "csv",
            [](std::uint8_t delimiter, std::uint64_t skip, std::uint64_t max_bytes) {
                return feedline::RowIndexer(delimiter, skip, max_bytes);
            },
            "delimiter"_a, "skip"_a, "max_bytes"_a,
            "Return an indexer of rows of cells of at most `max_bytes`, without the first `skip`.");

    nb::class_<feedline::Inflater>(m, "Inflater",
                                   "Decodes gzip or zlib, from a member's first byte, or from a point between two\n"
                                   "blocks: with the upper `bits` of the byte before. Not thread-safe.")
        .def(nb::new_([](unsigned bits, std::uint8_t byte, bool zlib) {
                 if (bits > 7) raise<nb::value_error>({"expected at most 7 bits, got ", bits});
                 return feedline::Inflater(bits, byte, zlib);
             }),
             "bits"_a, "byte"_a, "zlib"_a = false)
        .def_static("file", [](bool zlib) { return feedline::Inflater(zlib); }, "zlib"_a = false,
                    "Return an Inflater for the first byte of a file, or of a member of gzip.")
        .def("run", &inflate, "input"_a, "start"_a, "stop"_a, "last"_a, "out"_a, "position"_a, "point_after"_a,
             "Decode input[start:stop] into out[position:] and return (status, consumed, position, at a member).\n\n"
             "status: 0 needs more input, 1 needs more room, 2 at a point with position >= point_after, 3 the file\n"
             "has ended, -1 damaged. out[:position] is the text before. The last 264 bytes of `out` may stay unused.")
        .def_prop_ro("bits", &feedline::Inflater::bits, "At a point: bits of `byte` that belong to the next block.")
        .def_prop_ro("byte", &feedline::Inflater::byte, "At a point: the byte before it.")
        .def_prop_ro("problem", &feedline::Inflater::problem, "The damage, in words.");
}
