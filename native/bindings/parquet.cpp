#include "feedline/parquet.h"

#include <nanobind/nanobind.h>

#include <cstring>

#include "arrays.h"
#include "buffer_view.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using feedline::bindings::BufferView;
using feedline::bindings::Unlocked;

// ValueError(what, byte).
[[noreturn]] void raise(const feedline::ParquetError& error) {
    const nb::tuple arguments = nb::make_tuple(error.what(), error.byte);
    PyErr_SetObject(PyExc_ValueError, arguments.ptr());
    throw nb::python_error();
}

nb::object column(const std::vector<feedline::ParquetColumn>& columns, std::int64_t feedline::ParquetColumn::*field) {
    const nb::object array = feedline::bindings::new_array(columns.size(), feedline::bindings::numpy().int64);
    auto* out = feedline::bindings::data_of<std::int64_t>(array);
    for (const feedline::ParquetColumn& one : columns) *out++ = one.*field;
    return array;
}

nb::tuple footer(nb::handle data) {
    const BufferView view(data);
    feedline::ParquetFooter found;
    try {
        const Unlocked unlocked;
        found = feedline::parse_parquet_footer(static_cast<const std::uint8_t*>(view.data()), view.size());
    } catch (const feedline::ParquetError& error) {
        raise(error);
    }
    const nb::object rows = feedline::bindings::new_array(found.rows.size(), feedline::bindings::numpy().int64);
    if (!found.rows.empty())
        std::memcpy(feedline::bindings::memory(rows), found.rows.data(), found.rows.size() * sizeof(std::int64_t));
    using Column = feedline::ParquetColumn;
    return nb::make_tuple(rows, found.width, column(found.columns, &Column::values),
                          column(found.columns, &Column::uncompressed), column(found.columns, &Column::compressed),
                          column(found.columns, &Column::begin));
}

nb::object page(nb::handle data) {
    const BufferView view(data);
    feedline::ParquetPage found{};
    try {
        if (!feedline::parse_parquet_page(static_cast<const std::uint8_t*>(view.data()), view.size(), found))
            return nb::none();
    } catch (const feedline::ParquetError& error) {
        raise(error);
    }
    return nb::make_tuple(found.header, found.compressed, found.uncompressed, found.values);
}

}  // namespace

void bind_parquet(nb::module_& m) {
    m.def("parquet_footer", &footer, "data"_a,
          "Parse a footer and return (rows, width, values, uncompressed, compressed, begin).\n\n"
          "rows: int64[row groups]. width: number of columns. The others: int64[row groups * width], one entry\n"
          "for each column of each row group: number of values, bytes uncompressed and compressed, and offset\n"
          "in the file. ValueError(what, byte) for a damaged footer.");
    m.def("parquet_page", &page, "data"_a,
          "Parse the header at the beginning of `data` and return (header, compressed, uncompressed, values):\n"
          "the bytes of the header and of the page, compressed and not, and its number of values; None if the\n"
          "header is longer than `data`. ValueError(what, byte) for a damaged header.");
}
