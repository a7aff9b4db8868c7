#include "feedline/recordio.h"

#include <cstring>
#include <utility>
#include <vector>

#include "archives.h"
#include "faults.h"

namespace nb = nanobind;
using namespace nb::literals;
using feedline::bindings::raise;
using feedline::bindings::Unlocked;

namespace {

template <class T>
using Input = feedline::bindings::ArchiveInput<T>;

nb::tuple records(Input<std::uint8_t> data, Input<std::int64_t> begin, Input<std::int64_t> sizes,
                  Input<std::int64_t> label_bounds) {
    const std::size_t n = begin.size();
    feedline::bindings::check_samples(data.size(), begin, sizes);
    if (label_bounds.size() != n + 1)
        raise<nb::value_error>({"expected ", n + 1, " bounds of labels, got ", label_bounds.size()});
    const std::int64_t* bounds = label_bounds.data();
    for (std::size_t i = 0; i < n; ++i)
        if (bounds[0] != 0 || bounds[i + 1] < bounds[i])
            throw nb::value_error("expected bounds of labels that begin at 0 and ascend, got others");
    const auto& types = feedline::bindings::numpy();
    const nb::object labels = feedline::bindings::new_array(static_cast<std::size_t>(bounds[n]), types.float32);
    auto* out = feedline::bindings::data_of<float>(labels);
    feedline::RecordIOImages images;
    std::vector<feedline::RecordIOFault> faults;
    const void* unreadable;
    {
        const Unlocked unlocked;
        unreadable = feedline::read_recordio(data.data(), data.size(), begin.data(), sizes.data(), n, bounds, out,
                                             images, faults);
    }
    if (unreadable != nullptr)
        feedline::bindings::raise_fault("unreadable", feedline::bindings::address_of(unreadable));
    const bool joined = !images.bounds.empty();
    const std::vector<std::int64_t>& places = joined ? images.bounds : images.spans;
    const nb::object spans = feedline::bindings::new_array(places.size(), types.int64);
    if (!places.empty())
        std::memcpy(feedline::bindings::memory(spans), places.data(), places.size() * sizeof(std::int64_t));
    nb::object pictures = nb::none();
    if (joined) pictures = feedline::bindings::bytes_array(images.data.data(), images.data.size());
    return nb::make_tuple(labels, spans, pictures,
                          feedline::bindings::bytes_array(faults.data(), faults.size() * sizeof(feedline::RecordIOFault)));
}

nb::dict error_codes() {
    using feedline::RecordIOError;
    const std::pair<const char*, RecordIOError> codes[] = {
        {"cut", RecordIOError::cut},       {"bad_magic", RecordIOError::bad_magic},
        {"bad_part", RecordIOError::bad_part}, {"length", RecordIOError::length},
        {"header", RecordIOError::header}, {"labels", RecordIOError::labels},
        {"io", RecordIOError::io},
    };
    nb::dict result;
    for (const auto& [name, code] : codes) result[name] = static_cast<int>(code);
    return result;
}

}  // namespace

void bind_recordio(nb::module_& m) {
    m.attr("RECORDIO_ERRORS") = error_codes();
    nb::class_<feedline::RecordIOIndexer> indexer(
        m, "RecordIOIndexer",
        "Finds the records of an open RecordIO file by their headers. Not thread-safe.\n\n"
        "Entries are uint8 arrays of 24-byte records: number u8, offset u8, size u4, labels u4.");
    feedline::bindings::bind_archive_indexer<feedline::RecordIOIndexer, feedline::RecordIOEntry,
                                             feedline::RecordIOError>(indexer);
    m.def("recordio_records", &records, "data"_a, "begin"_a, "sizes"_a, "label_bounds"_a,
          "Read the records data[begin[i]:begin[i] + sizes[i]] and return (labels, spans, pictures, faults).\n\n"
          "labels: float32, those of record i from label_bounds[i] to label_bounds[i + 1]. pictures: None, and spans\n"
          "int64[2 * records] are the begin and end of each picture in data, or, if a record has several parts, the\n"
          "bytes of all pictures, and spans int64[records + 1] are their bounds. faults: uint8 array of 32-byte\n"
          "records: byte i8, expected i8, got i8, record i4, code i4. ValueError for records outside the data.\n"
          "DataError as in copied().");
}
