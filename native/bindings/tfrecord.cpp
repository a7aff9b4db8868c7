#include "feedline/tfrecord.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "rows.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using feedline::bindings::Field;
using feedline::bindings::Input;

constexpr std::uint64_t kItems[feedline::kRowTypes] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 0, 0};

using Source = std::tuple<nb::bytes, bool, std::optional<nb::bytes>>;

std::shared_ptr<feedline::ExampleParser> make_parser(const std::vector<Field>& given, const std::vector<Source>& places,
                                                     std::uint64_t memory_bytes) {
    auto fields = feedline::bindings::checked_fields(given, memory_bytes);
    if (places.size() != fields.size()) throw nb::value_error("one feature a field");
    std::vector<feedline::ExampleSource> sources;
    for (std::size_t s = 0; s < fields.size(); ++s) {
        const auto& [name, list, fallback] = places[s];
        feedline::ExampleSource one{std::string(name.c_str(), name.size()), list, fallback.has_value(), {}};
        if (fallback) one.fallback.assign(fallback->c_str(), fallback->size());
        std::uint64_t size = kItems[static_cast<int>(fields[s].type)];
        for (const std::int64_t dim : fields[s].shape)
            if (__builtin_mul_overflow(size, static_cast<std::uint64_t>(dim), &size))
                throw nb::value_error("a sample of too many values");
        if (list && !fields[s].ragged) throw nb::value_error("a feature list fills a ragged field");
        const bool string = kItems[static_cast<int>(fields[s].type)] == 0;
        if (string && !fields[s].shape.empty()) throw nb::value_error("strings have no shape");
        if (fallback && (fields[s].ragged ? !one.fallback.empty() : !string && one.fallback.size() != size))
            throw nb::value_error("a fallback is one sample, or nothing for a ragged field");
        for (const auto& other : sources)
            if (other.name == one.name && other.list == list) throw nb::value_error("a feature for several fields");
        sources.push_back(std::move(one));
    }
    return std::make_shared<feedline::ExampleParser>(std::move(fields), std::move(sources), memory_bytes);
}

struct Viewing {
    const feedline::ExampleParser& parser;
    feedline::RowColumns parse(const feedline::Rows& records) const { return parser.view(records); }
};

nb::tuple view(const feedline::ExampleParser& self, Input<std::uint8_t> text, std::int64_t start,
               Input<std::uint8_t> entries, std::uint64_t origin) {
    return feedline::bindings::parse(Viewing{self}, text, start, entries, origin);
}

nb::object features(Input<std::uint8_t> message) {
    std::vector<feedline::FeatureInfo> found;
    if (!feedline::list_features(message.data(), message.size(), found)) return nb::none();
    nb::list result;
    for (const auto& one : found)
        result.append(nb::make_tuple(nb::bytes(one.name.data(), one.name.size()), one.list, one.kind, one.steps,
                                     one.least, one.most));
    return result;
}

}  // namespace

void bind_tfrecord(nb::module_& m) {
    nb::class_<feedline::ExampleParser>(
        m, "ExampleParser",
        "Parses records that hold a tf.train.Example or SequenceExample. Immutable and thread-safe.\n\n"
        "fields: (type, shape, ragged); features: (name, whether it is a feature list, bytes of the sample where it is\n"
        "missing, or None).")
        .def(nb::new_(&make_parser), "fields"_a, "features"_a, "memory_bytes"_a)
        .def("parse", &feedline::bindings::parse<feedline::ExampleParser>, "text"_a, "start"_a, "entries"_a, "origin"_a,
             feedline::bindings::kParseDoc)
        .def("view", &view, "text"_a, "start"_a, "entries"_a, "origin"_a,
             "The same, but byte strings and texts, one a record and without bytes for missing ones, stay where they\n"
             "are: bounds are None, and the values begin and end of each in text[start:], int64.");
    nb::class_<feedline::RecordIndexer> indexer(
        m, "RecordIndexer",
        "Finds the records of a file that is fed block by block. Not thread-safe.\n\n"
        "Entries are uint8 arrays of 24-byte records: number u8, offset u8, size u4, samples u4.");
    indexer.def(nb::new_([](std::shared_ptr<feedline::ExampleParser> parser, int size_stream) {
                    if (parser != nullptr && size_stream >= static_cast<int>(parser->fields().size()))
                        throw nb::value_error("size_stream must be the index of a field, or -1");
                    return feedline::RecordIndexer(std::move(parser), size_stream);
                }),
                "parser"_a.none(), "size_stream"_a);
    feedline::bindings::bind_indexer(indexer);
    m.def("example_features", &features, "message"_a,
          "(name, whether it is a feature list, kind, steps, least and most values of a step) of the features of an\n"
          "Example or SequenceExample; None: it is no such message. kind: 1 bytes, 2 floats, 3 integers, 0 none, -1\n"
          "several.");
}
