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
using feedline::bindings::Unlocked;

namespace {

template <class T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
nb::object copied(const std::vector<T>& from, std::size_t n, nb::handle dtype) {
    const nb::object array = feedline::bindings::new_array(n, dtype);
    if (!from.empty()) std::memcpy(feedline::bindings::memory(array), from.data(), from.size() * sizeof(T));
    return array;
}

template <class T>
nb::object records(const std::vector<T>& from) {
    return copied(from, from.size() * sizeof(T), feedline::bindings::numpy().uint8);
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
    if (size.size() != begin.size()) throw nb::value_error("begin and size must have one length");
    for (std::size_t i = 0; i < begin.size(); ++i) {
        const std::int64_t at = begin.data()[i];
        if (at < 0 || static_cast<std::uint64_t>(at) > text.size() ||
            size.data()[i] > text.size() - static_cast<std::uint64_t>(at))
            throw nb::value_error("an utterance lies outside the text");
    }
    feedline::MlfRuns runs;
    {
        const Unlocked unlocked;
        runs = self.parse(text.data(), begin.data(), size.data(), begin.size());
    }
    const auto& types = feedline::bindings::numpy();
    return nb::make_tuple(copied(runs.offsets, runs.offsets.size(), types.int64),
                          copied(runs.frames, runs.frames.size(), types.uint32),
                          copied(runs.classes, runs.classes.size(), types.uint32), records(runs.faults));
}

nb::object name_keys(nb::handle data, Input<std::int64_t> begin, Input<std::int64_t> end) {
    const feedline::bindings::BufferView view(data);
    if (begin.size() != end.size()) throw nb::value_error("begin and end must have one length");
    const nb::object keys = feedline::bindings::new_array(begin.size(), feedline::bindings::numpy().uint64);
    auto* out = feedline::bindings::data_of<std::uint64_t>(keys);
    const auto* text = static_cast<const char*>(view.data());
    for (std::size_t i = 0; i < begin.size(); ++i) {
        const std::int64_t from = begin.data()[i], to = end.data()[i];
        if (from < 0 || to < from || static_cast<std::uint64_t>(to) > view.size())
            throw nb::value_error("a name lies outside the text");
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
        "Finds the utterances of an MLF text fed block by block. Entries are uint8 arrays of 24-byte records (key u8, "
        "offset u8, size u4, samples u4). Not for several threads at once.")
        .def(nb::init<bool>(), "drop_invalid"_a)
        .def("feed", &feed, "block"_a, "Entries that this block (uint8 array) finishes.")
        .def("finish", &finish, "Entries left at the end of the file.")
        .def_prop_ro("error", &error, "None, or (code of MLF_ERRORS, byte from the start of the file).")
        .def_prop_ro("has_ids", [](const feedline::MlfIndexer&) { return true; }, "Always: names part utterances.")
        .def_prop_ro("lines", &feedline::MlfIndexer::dropped, "Utterances left out as invalid.")
        .def_prop_ro("bytes", &feedline::MlfIndexer::bytes, "Bytes fed.");
    nb::class_<feedline::MlfParser>(m, "MlfParser",
                                    "Parses utterances into runs of frames. Immutable, for any number of threads.")
        .def(nb::new_(&make_parser), "states"_a.none(), "classes"_a)
        .def("parse", &parse, "text"_a, "begin"_a, "size"_a,
             "(offsets, frames, classes, faults) of the runs of each utterance; faults are uint8 records of 24 bytes "
             "(byte i8, sequence i8, code i4, zero i4).");
    m.def("name_keys", &name_keys, "data"_a, "begin"_a, "end"_a,
          "uint64 keys of the names data[begin[i]:end[i]], without a leading `*/` and what follows the last dot.");
}
