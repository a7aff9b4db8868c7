#include "feedline/mlf.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "buffer_view.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;
using feedline::bindings::raise;
using feedline::bindings::Unlocked;

namespace {

template <class T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
nb::object copy_of(const std::vector<T>& from, std::size_t n, nb::handle dtype) {
    const nb::object array = feedline::bindings::new_array(n, dtype);
    if (!from.empty()) std::memcpy(feedline::bindings::memory(array), from.data(), from.size() * sizeof(T));
    return array;
}

template <class T>
nb::object records(const std::vector<T>& from) {
    return copy_of(from, from.size() * sizeof(T), feedline::bindings::numpy().uint8);
}

nb::object feed(feedline::MlfIndexer& self, Input<std::uint8_t> block) {
    std::vector<feedline::MlfEntry> entries;
    {
        const Unlocked unlocked;
        self.feed(block.data(), block.size(), entries);
    }
    return records(entries);
}

nb::object finish(feedline::MlfIndexer& self) {
    std::vector<feedline::MlfEntry> entries;
    self.finish(entries);
    return records(entries);
}

nb::object error(const feedline::MlfIndexer& self) {
    if (self.error() == feedline::MlfError::none) return nb::none();
    return nb::make_tuple(static_cast<int>(self.error()), self.error_byte());
}

feedline::MlfParser make_parser(std::optional<std::vector<nb::bytes>> states, std::uint32_t classes) {
    std::vector<std::string> names;
    if (states)
        for (const nb::bytes& name : *states) names.emplace_back(name.c_str(), name.size());
    return feedline::MlfParser(std::move(names), states.has_value(), classes);
}

nb::tuple parse(const feedline::MlfParser& self, Input<std::uint8_t> text, Input<std::int64_t> begin,
                Input<std::uint32_t> size) {
    if (size.size() != begin.size())
        raise<nb::value_error>({"expected `begin` and `size` of equal length, got ", begin.size(), " and ",
                                size.size()});
    for (std::size_t i = 0; i < begin.size(); ++i) {
        const std::int64_t at = begin.data()[i];
        if (at < 0 || static_cast<std::uint64_t>(at) > text.size() ||
            size.data()[i] > text.size() - static_cast<std::uint64_t>(at))
            raise<nb::value_error>({"expected utterances within the ", text.size(), " bytes of text, got ",
                                    size.data()[i], " bytes at ", at});
    }
    feedline::MlfRuns runs;
    {
        const Unlocked unlocked;
        runs = self.parse(text.data(), begin.data(), size.data(), begin.size());
    }
    const auto& types = feedline::bindings::numpy();
    return nb::make_tuple(copy_of(runs.offsets, runs.offsets.size(), types.int64),
                          copy_of(runs.frames, runs.frames.size(), types.uint32),
                          copy_of(runs.classes, runs.classes.size(), types.uint32), records(runs.faults));
}

nb::object name_keys(nb::handle data, Input<std::int64_t> begin, Input<std::int64_t> end) {
    const feedline::bindings::BufferView view(data);
    if (begin.size() != end.size())
        raise<nb::value_error>({"expected `begin` and `end` of equal length, got ", begin.size(), " and ", end.size()});
    const nb::object keys = feedline::bindings::new_array(begin.size(), feedline::bindings::numpy().uint64);
    auto* out = feedline::bindings::data_of<std::uint64_t>(keys);
    const auto* text = static_cast<const char*>(view.data());
    for (std::size_t i = 0; i < begin.size(); ++i) {
        const std::int64_t from = begin.data()[i], to = end.data()[i];
        if (from < 0 || to < from || static_cast<std::uint64_t>(to) > view.size())
            raise<nb::value_error>({"expected names within the ", view.size(), " bytes of text, got bytes ", from,
                                    " to ", to});
        out[i] = feedline::name_key({text + from, static_cast<std::size_t>(to - from)});
    }
    return keys;
}

nb::dict error_codes() {
    using feedline::MlfError;
    const std::pair<const char*, MlfError> codes[] = {
        {"no_header", MlfError::no_header},       {"no_name", MlfError::no_name},
        {"cut", MlfError::cut},                   {"too_few_words", MlfError::too_few_words},
        {"bad_time", MlfError::bad_time},         {"not_contiguous", MlfError::not_contiguous},
        {"no_lines", MlfError::no_lines},         {"unknown_state", MlfError::unknown_state},
        {"bad_class", MlfError::bad_class},       {"too_long", MlfError::too_long},
    };
    nb::dict result;
    for (const auto& [name, code] : codes) result[name] = static_cast<int>(code);
    return result;
}

}  // namespace

void bind_mlf(nb::module_& m) {
    m.attr("MLF_ERRORS") = error_codes();
    nb::class_<feedline::MlfIndexer>(
        m, "MlfIndexer",
        "Finds the utterances of an MLF text that is fed block by block. Not thread-safe.\n\n"
        "Entries are uint8 arrays of 24-byte records: key u8, offset u8, size u4, samples u4.")
        .def(nb::init<bool>(), "drop_invalid"_a)
        .def("feed", &feed, "block"_a, "Return the entries that `block` (uint8[n]) completes.")
        .def("finish", &finish, "Return the entries that the end of the file completes.")
        .def_prop_ro("error", &error, "The first error: (code of MLF_ERRORS, byte from the start of the file), or None.")
        .def_prop_ro("has_ids", [](const feedline::MlfIndexer&) { return true; }, "Always True, as utterances have names.")
        .def_prop_ro("lines", &feedline::MlfIndexer::dropped, "Number of utterances dropped as invalid.")
        .def_prop_ro("bytes", &feedline::MlfIndexer::bytes, "Number of bytes fed so far.");
    nb::class_<feedline::MlfParser>(m, "MlfParser",
                                    "Parses utterances into runs of frames. Immutable and thread-safe.")
        .def(nb::new_(&make_parser), "states"_a.none(), "classes"_a)
        .def("parse", &parse, "text"_a, "begin"_a, "size"_a,
             "Parse utterances and return (offsets, frames, classes, faults): int64[n + 1] offsets of each\n"
             "utterance's runs, their frames and classes, uint32, and a uint8 array of 24-byte records: byte i8,\n"
             "sequence i8, code i4, zero i4. ValueError for utterances outside the text.");
    m.def("name_keys", &name_keys, "data"_a, "begin"_a, "end"_a,
          "Return the keys, uint64[n], of the names data[begin[i]:end[i]], without a leading `*/` and the extension.\n"
          "ValueError for names outside the data.");
}
