#include "feedline/tar.h"

#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "archives.h"
#include "faults.h"

namespace nb = nanobind;
using namespace nb::literals;
using feedline::bindings::Unlocked;

namespace {

template <class T>
using Input = feedline::bindings::ArchiveInput<T>;
using feedline::bindings::bytes_array;

nb::tuple members(Input<std::uint8_t> data, Input<std::int64_t> begin, Input<std::int64_t> sizes,
                  const std::vector<nb::bytes>& fields, bool keys) {
    const std::size_t n = begin.size();
    feedline::bindings::check_samples(data.size(), begin, sizes);
    std::vector<std::string> suffixes;
    for (const nb::bytes& name : fields) suffixes.emplace_back(name.c_str(), name.size());
    const auto& types = feedline::bindings::numpy();
    const nb::object spans = feedline::bindings::new_array(2 * n * suffixes.size(), types.int64);
    auto* out = feedline::bindings::data_of<std::int64_t>(spans);
    const nb::object bounds = feedline::bindings::new_array(n + 1, types.int64);
    auto* key_bounds = feedline::bindings::data_of<std::int64_t>(bounds);
    std::vector<feedline::TarFault> faults;
    std::string text;
    const void* unreadable;
    {
        const Unlocked unlocked;
        unreadable = feedline::find_tar_members(data.data(), data.size(), begin.data(), sizes.data(), n, suffixes, out,
                                                faults, keys ? &text : nullptr, keys ? key_bounds : nullptr);
    }
    if (unreadable != nullptr)
        feedline::bindings::raise_fault("unreadable", feedline::bindings::address_of(unreadable));
    const nb::object records = bytes_array(faults.data(), faults.size() * sizeof(feedline::TarFault));
    if (!keys) return nb::make_tuple(spans, records, nb::none(), nb::none());
    return nb::make_tuple(spans, records, bounds, bytes_array(text.data(), text.size()));
}

nb::list suffixes(Input<std::uint8_t> data) {
    nb::list members;
    for (const feedline::TarSuffix& member : feedline::list_tar_members(data.data(), data.size()))
        members.append(nb::make_tuple(nb::bytes(member.suffix.data(), member.suffix.size()), member.begin, member.end));
    return members;
}

// The blocks of an iterator of arrays. Destroyed with the GIL.
feedline::Blocks blocks_of(nb::object iterator) {
    return [iterator = std::move(iterator)] {
        const nb::gil_scoped_acquire acquired;
        PyObject* next = PyIter_Next(iterator.ptr());
        if (next == nullptr && PyErr_Occurred() != nullptr) throw nb::python_error();
        if (next == nullptr) return std::pair<const std::uint8_t*, std::size_t>{nullptr, 0};
        const auto block = nb::cast<Input<std::uint8_t>>(nb::steal(next));  // the iterator keeps it until the next one
        return std::pair<const std::uint8_t*, std::size_t>{block.data(), block.size()};
    };
}

nb::dict error_codes() {
    using feedline::TarError;
    const std::pair<const char*, TarError> codes[] = {
        {"cut", TarError::cut},         {"bad_header", TarError::bad_header}, {"bad_extended", TarError::bad_extended},
        {"link", TarError::link},       {"sparse", TarError::sparse},         {"volume", TarError::volume},
        {"global", TarError::global},   {"too_long", TarError::too_long},     {"io", TarError::io},
        {"missing", TarError::missing}, {"repeated", TarError::repeated},
    };
    nb::dict result;
    for (const auto& [name, code] : codes) result[name] = static_cast<int>(code);
    return result;
}

}  // namespace

void bind_tar(nb::module_& m) {
    m.attr("TAR_ERRORS") = error_codes();
    nb::class_<feedline::TarIndexer> indexer(
        m, "TarIndexer",
        "Finds the samples of an open tar archive by its headers. Not thread-safe.\n\n"
        "Entries are uint8 arrays of 24-byte records: key u8, offset u8, size u4, samples u4.");
    feedline::bindings::bind_archive_indexer<feedline::TarIndexer, feedline::TarEntry, feedline::TarError>(indexer);
    indexer.def(
        "__init__",
        [](feedline::TarIndexer* self, nb::iterator blocks) {
            new (self) feedline::TarIndexer(blocks_of(std::move(blocks)));
        },
        "blocks"_a, "blocks: an iterator of uint8 arrays, each valid until the next, the bytes of the archive in turn.");
    m.def("tar_members", &members, "data"_a, "begin"_a, "sizes"_a, "fields"_a, "keys"_a = false,
          "Find the members of samples data[begin[i]:begin[i] + sizes[i]] and return (spans, faults, bounds, keys).\n\n"
          "fields: suffixes in lower case. spans: int64[fields, samples, 2]: begin and end of the member in data, 0\n"
          "and 0 for a sample with a fault. faults: uint8 array of 24-byte records: byte i8, sample i4, field i4,\n"
          "code i4, zero i4. bounds, keys: the keys of the samples, as byte strings, if `keys`, else None. ValueError\n"
          "for samples outside the data. DataError as in copied().");
    m.def("tar_suffixes", &suffixes, "data"_a, "Return (suffix, begin, end) of each member of one sample.");
}
