#include "feedline/cbf.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <limits>
#include <vector>

#include "arrays.h"
#include "buffer_view.h"
#include "faults.h"
#include "feedline/guard.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;
using feedline::bindings::BufferView;
using feedline::bindings::raise;
using feedline::bindings::Unlocked;

namespace {

template <class T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Output = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check_readable(const void* unreadable) {
    if (unreadable != nullptr)
        feedline::bindings::raise_fault("unreadable", feedline::bindings::address_of(unreadable));
}

nb::tuple find(nb::handle data, Input<std::int64_t> sizes, Input<std::uint32_t> sequences,
               Input<std::uint32_t> samples, const nb::list& streams, bool open_end) {
    const BufferView view(data);
    std::vector<feedline::CbfStream> declared;
    for (const nb::handle stream : streams) {
        const nb::tuple parts = nb::cast<nb::tuple>(stream);
        const auto value_bytes = nb::cast<std::uint32_t>(parts[1]), dim = nb::cast<std::uint32_t>(parts[2]);
        if ((value_bytes != 4 && value_bytes != 8) || dim == 0)
            raise<nb::value_error>({"expected values of 4 or 8 bytes, and a dimension of at least 1, got ", value_bytes,
                                    " bytes and ", dim});
        declared.push_back({nb::cast<bool>(parts[0]), value_bytes, dim});
    }
    const std::size_t count = sizes.size();
    if (sequences.size() != count || samples.size() != count)
        raise<nb::value_error>({"expected `sizes`, `sequences` and `samples` of equal length, got ", count, ", ",
                                sequences.size(), " and ", samples.size()});
    std::uint64_t total = 0, n = 0;
    for (std::size_t i = 0; i < count; ++i) {
        if (sizes.data()[i] < 0)
            raise<nb::value_error>({"expected sizes of at least 0, got ", sizes.data()[i], " at ", i});
        total += static_cast<std::uint64_t>(sizes.data()[i]);
        n += sequences.data()[i];
        if (total > view.size())
            raise<nb::value_error>({"expected chunks within the ", view.size(), " bytes of data, got ", total,
                                    " bytes"});
        // Each sequence has at least 4 bytes, so this limits the memory that is allocated below.
        if (n > total / 4)
            raise<nb::value_error>({"expected at most ", total / 4, " sequences in ", total, " bytes, got ", n});
    }
    const nb::handle int64 = feedline::bindings::numpy().int64, uint32 = feedline::bindings::numpy().uint32;
    const nb::object begin = feedline::bindings::new_array(n * declared.size(), int64);
    const nb::object lengths = feedline::bindings::new_array(n * declared.size(), uint32);
    const nb::object stored = feedline::bindings::new_array(n * declared.size(), feedline::bindings::numpy().int32);
    const nb::object faults =
        feedline::bindings::new_array(count * sizeof(feedline::CbfFault), feedline::bindings::numpy().uint8);
    const feedline::CbfChunks chunks{static_cast<const std::uint8_t*>(view.data()), sizes.data(), sequences.data(),
                                     samples.data(), count};
    auto* begins = feedline::bindings::data_of<std::int64_t>(begin);
    auto* lengths_data = feedline::bindings::data_of<std::uint32_t>(lengths);
    auto* values = feedline::bindings::data_of<std::int32_t>(stored);
    auto* records = feedline::bindings::data_of<feedline::CbfFault>(faults);
    const void* unreadable;
    {
        const Unlocked unlocked;
        unreadable = feedline::guarded([&] {
            feedline::find_cbf(chunks, declared.data(), declared.size(), n, open_end, begins, lengths_data, values,
                               records);
        });
    }
    check_readable(unreadable);
    return nb::make_tuple(begin, lengths, stored, faults);
}

[[noreturn]] void raise_outside(std::size_t sequence, std::int64_t begin, std::size_t size) {
    raise<nb::value_error>({"expected sequences within the ", size, " bytes of data, got sequence ", sequence,
                            " at byte ", begin});
}

// Throws unless every sequence is within the data, given the bytes of its rows and values. Returns the sum of samples.
std::uint64_t check_places(std::size_t size, const Input<std::int64_t>& begin, const Input<std::uint32_t>& samples,
                           const std::int32_t* stored, std::uint64_t row_bytes, std::uint64_t value_bytes) {
    if (samples.size() != begin.size())
        raise<nb::value_error>({"expected `begin` and `samples` of equal length, got ", begin.size(), " and ",
                                samples.size()});
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < begin.size(); ++i) {
        const std::int64_t at = begin.data()[i];
        const std::uint64_t length = samples.data()[i];
        const bool bad_stored = stored != nullptr && (stored[i] < 0 || (stored[i] > 0 && length == 0));
        if (at < 0 || static_cast<std::uint64_t>(at) > size || bad_stored) raise_outside(i, at, size);
        const std::uint64_t room = size - static_cast<std::uint64_t>(at);
        if (length > room / row_bytes ||
            (stored != nullptr &&
             static_cast<std::uint64_t>(stored[i]) * (value_bytes + 4) > room - length * row_bytes))
            raise_outside(i, at, size);
        total += length;
    }
    return total;
}

void dense(nb::handle data, Input<std::int64_t> begin, Input<std::uint32_t> samples, std::uint64_t row_bytes,
           Output<std::uint8_t> out) {
    const BufferView view(data);
    if (row_bytes == 0) throw nb::value_error("expected rows of at least 1 byte, got 0");
    const std::uint64_t total = check_places(view.size(), begin, samples, nullptr, row_bytes, 0);
    if (out.size() != total * row_bytes)
        raise<nb::value_error>({"expected `out` of ", total * row_bytes, " bytes for all rows, got ", out.size()});
    const void* unreadable;
    {
        const Unlocked unlocked;
        unreadable = feedline::guarded([&] {
            feedline::copy_cbf_dense(static_cast<const std::uint8_t*>(view.data()), begin.data(), samples.data(),
                                     begin.size(), row_bytes, out.data());
        });
    }
    check_readable(unreadable);
}

nb::tuple sparse(nb::handle data, Input<std::int64_t> begin, Input<std::uint32_t> samples, Input<std::int32_t> stored,
                 std::uint64_t value_bytes) {
    const BufferView view(data);
    if (stored.size() != begin.size())
        raise<nb::value_error>({"expected `begin` and `stored` of equal length, got ", begin.size(), " and ",
                                stored.size()});
    if (value_bytes != 4 && value_bytes != 8)
        raise<nb::value_error>({"expected values of 4 or 8 bytes, got ", value_bytes});
    const std::uint64_t rows = check_places(view.size(), begin, samples, stored.data(), 4, value_bytes);
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < stored.size(); ++i) total += static_cast<std::uint64_t>(stored.data()[i]);
    const auto& types = feedline::bindings::numpy();
    const nb::object indptr = feedline::bindings::new_array(rows + 1, types.int64);
    const nb::object indices = feedline::bindings::new_array(total, types.int32);
    const nb::object values = feedline::bindings::new_array(total * value_bytes, types.uint8);
    const nb::object bad = feedline::bindings::new_array(begin.size(), types.boolean);
    auto* bounds = feedline::bindings::data_of<std::int64_t>(indptr);
    auto* classes = feedline::bindings::data_of<std::int32_t>(indices);
    auto* numbers = feedline::bindings::data_of<std::uint8_t>(values);
    auto* flags = feedline::bindings::data_of<bool>(bad);
    const void* unreadable;
    {
        const Unlocked unlocked;
        unreadable = feedline::guarded([&] {
            feedline::copy_cbf_sparse(static_cast<const std::uint8_t*>(view.data()), begin.data(), samples.data(),
                                      stored.data(), begin.size(), value_bytes, bounds, classes, numbers, flags);
        });
    }
    check_readable(unreadable);
    return nb::make_tuple(indptr, indices, values, bad);
}

}  // namespace

void bind_cbf(nb::module_& m) {
    m.def("cbf_find", &find, "data"_a, "sizes"_a, "sequences"_a, "samples"_a, "streams"_a, "open_end"_a,
          "Find the sequences of a run of CBF chunks and return (begin, samples, stored, faults).\n\n"
          "streams: (sparse, bytes of a value, dim) each. begin, samples, stored: one row of all sequences for each\n"
          "stream, one after the other. faults: uint8 array of 40-byte records, one for each chunk: byte i8, expected\n"
          "i8, got i8, stream i4, code i4, sequence i8. ValueError for arguments that do not fit the data.");
    m.def("cbf_dense", &dense, "data"_a, "begin"_a, "samples"_a, "row_bytes"_a, "out"_a,
          "Copy dense sequences into the bytes `out`. ValueError for sequences outside the data.");
    m.def("cbf_sparse", &sparse, "data"_a, "begin"_a, "samples"_a, "stored"_a, "value_bytes"_a,
          "Copy sparse sequences and return (indptr, indices, values as bytes, bad). bad: bool[sequences]. ValueError\n"
          "for sequences outside the data.");
}
