#include "feedline/tar.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "faults.h"
#include "reach.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;
using feedline::bindings::Unlocked;

namespace {

template <class T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::object bytes_array(const void* from, std::size_t n) {
    const nb::object array = feedline::bindings::new_array(n, feedline::bindings::numpy().uint8);
    if (n != 0) std::memcpy(feedline::bindings::memory(array), from, n);
    return array;
}

void init(feedline::TarIndexer* self, int descriptor, std::uint64_t size, nb::object reach) {
    new (self) feedline::TarIndexer(descriptor, size, feedline::bindings::reach_of(std::move(reach)));
}

nb::object next(feedline::TarIndexer& self, std::size_t members) {
    std::vector<feedline::TarEntry> entries;
    {
        const Unlocked unlocked;
        self.next(members, entries);
    }
    return bytes_array(entries.data(), entries.size() * sizeof(feedline::TarEntry));
}

nb::object error(const feedline::TarIndexer& self) {
    if (self.error() == feedline::TarError::none) return nb::none();
    return nb::make_tuple(static_cast<int>(self.error()), self.error_byte());
}

nb::tuple members(Input<std::uint8_t> data, Input<std::int64_t> begin, Input<std::int64_t> sizes,
                  const std::vector<nb::bytes>& fields, bool keys) {
    const std::size_t n = begin.size();
    if (sizes.size() != n) throw nb::value_error("begin and sizes must have one length");
    for (std::size_t i = 0; i < n; ++i) {
        const std::int64_t at = begin.data()[i], size = sizes.data()[i];
        if (at < 0 || size < 0 || static_cast<std::uint64_t>(at) > data.size() ||
            static_cast<std::uint64_t>(size) > data.size() - static_cast<std::uint64_t>(at))
            throw nb::value_error("a sample lies outside the data");
    }
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
    const nb::object found = bytes_array(faults.data(), faults.size() * sizeof(feedline::TarFault));
    if (!keys) return nb::make_tuple(spans, found, nb::none(), nb::none());
    return nb::make_tuple(spans, found, bounds, bytes_array(text.data(), text.size()));
}

nb::list suffixes(Input<std::uint8_t> data) {
    nb::list found;
    for (const feedline::TarSuffix& one : feedline::list_tar_members(data.data(), data.size()))
        found.append(nb::make_tuple(nb::bytes(one.suffix.data(), one.suffix.size()), one.begin, one.end));
    return found;
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
    nb::class_<feedline::TarIndexer>(
        m, "TarIndexer",
        "Finds the samples of an open tar archive by its headers. Entries are uint8 arrays of 24-byte records (key u8, "
        "offset u8, size u4, samples u4). Not for several threads at once.")
        .def("__init__", &init, "descriptor"_a, "size"_a, "reach"_a = nb::none(),
             "reach(begin, end), if given, makes bytes readable before they are read, and returns between which bytes "
             "that holds until it is called again.")
        .def("next", &next, "members"_a, "Samples that the next members finish.")
        .def_prop_ro("done", &feedline::TarIndexer::done, "Whether there are no more.")
        .def_prop_ro("error", &error, "None, or (code of TAR_ERRORS, byte from the start of the file).")
        .def_prop_ro("error_number", &feedline::TarIndexer::error_number, "errno of a failed read.")
        .def_prop_ro("bytes", &feedline::TarIndexer::bytes, "Bytes up to which headers were read.");
    m.def("tar_members", &members, "data"_a, "begin"_a, "sizes"_a, "fields"_a, "keys"_a = false,
          "(spans, faults, bounds, keys) of the samples data[begin[i]:begin[i] + sizes[i]]: for each field (suffix, in "
          "lower case) and sample begin and end of its member in data; uint8 records of 24 bytes (byte i8, sample i4, "
          "field i4, code i4, zero i4) of those that are not whole, whose spans are empty; the keys of the samples, or "
          "None.");
    m.def("tar_suffixes", &suffixes, "data"_a, "(suffix, begin, end) of the members of one sample.");
}
