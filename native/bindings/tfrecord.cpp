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
using feedline::bindings::raise;

constexpr std::uint64_t kItems[feedline::kRowTypes] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 0, 0};

using Source = std::tuple<nb::bytes, bool, std::optional<nb::bytes>>;

std::shared_ptr<feedline::ExampleParser> make_parser(const std::vector<Field>& declared,
                                                     const std::vector<Source>& features, std::uint64_t memory_bytes) {
    auto fields = feedline::bindings::checked_fields(declared, memory_bytes);
    if (features.size() != fields.size())
        raise<nb::value_error>({"expected one feature for each of ", fields.size(), " fields, got ", features.size()});
    std::vector<feedline::ExampleSource> sources;
    for (std::size_t s = 0; s < fields.size(); ++s) {
        const auto& [name, list, fallback] = features[s];
        feedline::ExampleSource source{std::string(name.c_str(), name.size()), list, fallback.has_value(), {}};
        if (fallback) source.fallback.assign(fallback->c_str(), fallback->size());
        std::uint64_t size = kItems[static_cast<int>(fields[s].type)];
        for (const std::int64_t dim : fields[s].shape)
            if (__builtin_mul_overflow(size, static_cast<std::uint64_t>(dim), &size))
                throw nb::value_error("expected samples of fewer than 2**64 bytes, got a larger shape");
        if (list && !fields[s].ragged)
            raise<nb::value_error>({"expected a ragged field for a feature list, got field ", s});
        const bool string = kItems[static_cast<int>(fields[s].type)] == 0;
        if (string && !fields[s].shape.empty())
            raise<nb::value_error>({"expected strings without a shape, got one for field ", s});
        if (fallback && (fields[s].ragged ? !source.fallback.empty() : !string && source.fallback.size() != size))
            raise<nb::value_error>({"expected a fallback of one sample, empty for a ragged field, got ",
                                    source.fallback.size(), " bytes for field ", s});
        for (const auto& other : sources)
            if (other.name == source.name && other.list == list)
                raise<nb::value_error>({"expected each feature for one field, got '", source.name, "' for several"});
        sources.push_back(std::move(source));
    }
    return std::make_shared<feedline::ExampleParser>(std::move(fields), std::move(sources), memory_bytes);
}

// Passes view() to `parse`.
struct ViewParser {
    const feedline::ExampleParser& parser;
    feedline::RowColumns parse(const feedline::Rows& records) const { return parser.view(records); }
};

nb::tuple view(const feedline::ExampleParser& self, Input<std::uint8_t> text, std::int64_t start,
               Input<std::uint8_t> entries, std::uint64_t origin) {
    return feedline::bindings::parse(ViewParser{self}, text, start, entries, origin);
}

nb::object features(Input<std::uint8_t> message) {
    std::vector<feedline::FeatureInfo> infos;
    if (!feedline::list_features(message.data(), message.size(), infos)) return nb::none();
    nb::list result;
    for (const auto& info : infos)
        result.append(nb::make_tuple(nb::bytes(info.name.data(), info.name.size()), info.list, info.kind, info.steps,
                                     info.min_values, info.max_values));
    return result;
}

}  // namespace

void bind_tfrecord(nb::module_& m) {
    nb::class_<feedline::ExampleParser>(
        m, "ExampleParser",
        "Parses records that hold a tf.train.Example or SequenceExample. Immutable and thread-safe.\n\n"
        "fields: (type, shape, ragged). features: (name, whether it is a feature list, bytes of the sample for\n"
        "records without it, or None).")
        .def(nb::new_(&make_parser), "fields"_a, "features"_a, "memory_bytes"_a)
        .def("parse", &feedline::bindings::parse<feedline::ExampleParser>, "text"_a, "start"_a, "entries"_a, "origin"_a,
             feedline::bindings::kParseDoc)
        .def("view", &view, "text"_a, "start"_a, "entries"_a, "origin"_a,
             "The same, but byte strings and texts, if there is one per record and no bytes for missing ones, are not\n"
             "copied: their bounds are None, and their values are the begin and end of each in text[start:], int64.");
    nb::class_<feedline::RecordIndexer> indexer(
        m, "RecordIndexer",
        "Finds the records of a file that is fed block by block. Not thread-safe.\n\n"
        "Entries are uint8 arrays of 24-byte records: number u8, offset u8, size u4, samples u4.");
    indexer.def(nb::new_([](std::shared_ptr<feedline::ExampleParser> parser, int size_stream) {
                    if (parser != nullptr && size_stream >= static_cast<int>(parser->fields().size()))
                        raise<nb::value_error>({"expected size_stream to be the index of one of ",
                                                parser->fields().size(), " fields, or -1, got ", size_stream});
                    return feedline::RecordIndexer(std::move(parser), size_stream);
                }),
                "parser"_a.none(), "size_stream"_a);
    feedline::bindings::bind_indexer(indexer);
    m.def("example_features", &features, "message"_a,
          "Return (name, whether it is a feature list, kind, steps, minimum and maximum number of values of a step)\n"
          "for each feature of an Example or SequenceExample, or None if it is no such message. kind: 1 bytes, 2\n"
          "floats, 3 integers, 0 none, -1 several.");
}
