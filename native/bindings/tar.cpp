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
using feedline::bindings::raise;
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
    if (sizes.size() != n)
        raise<nb::value_error>({"expected `begin` and `sizes` of equal length, got ", n, " and ", sizes.size()});
    for (std::size_t i = 0; i < n; ++i) {
        const std::int64_t at = begin.data()[i], size = sizes.data()[i];
        if (at < 0 || size < 0 || static_cast<std::uint64_t>(at) > data.size() ||
            static_cast<std::uint64_t>(size) > data.size() - static_cast<std::uint64_t>(at))
            raise<nb::value_error>({"expected samples within the ", data.size(), " bytes of data, got ", size,
                                    " bytes at ", at});
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
        "Finds the samples of an open tar archive by its headers. Not thread-safe.\n\n"
        "Entries are uint8 arrays of 24-byte records: key u8, offset u8, size u4, samples u4.")
        .def("__init__", &init, "descriptor"_a, "size"_a, "reach"_a = nb::none(),
             "reach(begin, end), if not None, is called before bytes are read and makes them readable. It returns the\n"
             "range of bytes that may be read until the next call.")
        .def("next", &next, "members"_a, "Return the entries that the next `members` members complete.")
        .def_prop_ro("done", &feedline::TarIndexer::done, "Whether all members were read.")
        .def_prop_ro("error", &error, "The first error: (code of TAR_ERRORS, byte from the start of the file), or None.")
        .def_prop_ro("error_number", &feedline::TarIndexer::error_number, "The errno of a failed read.")
        .def_prop_ro("bytes", &feedline::TarIndexer::bytes, "Number of bytes up to which headers were read.");
    m.def("tar_members", &members, "data"_a, "begin"_a, "sizes"_a, "fields"_a, "keys"_a = false,
          "Find the members of samples data[begin[i]:begin[i] + sizes[i]] and return (spans, faults, bounds, keys).\n\n"
          "fields: suffixes in lower case. spans: int64[fields, samples, 2]: begin and end of the member in data, 0\n"
          "and 0 for a sample with a fault. faults: uint8 array of 24-byte records: byte i8, sample i4, field i4,\n"
          "code i4, zero i4. bounds, keys: the keys of the samples, as byte strings, if `keys`, else None. ValueError\n"
          "for samples outside the data. DataError as in copied().");
    m.def("tar_suffixes", &suffixes, "data"_a, "Return (suffix, begin, end) of each member of one sample.");
}
