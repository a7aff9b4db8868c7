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

nb::object field_of(const std::vector<feedline::ParquetColumn>& columns, std::int64_t feedline::ParquetColumn::*field) {
    const nb::object array = feedline::bindings::new_array(columns.size(), feedline::bindings::numpy().int64);
    auto* out = feedline::bindings::data_of<std::int64_t>(array);
    for (const feedline::ParquetColumn& column : columns) *out++ = column.*field;
    return array;
}

nb::tuple footer(nb::handle data) {
    const BufferView view(data);
    feedline::ParquetFooter parsed;
    try {
        const Unlocked unlocked;
        parsed = feedline::parse_parquet_footer(static_cast<const std::uint8_t*>(view.data()), view.size());
    } catch (const feedline::ParquetError& error) {
        raise(error);
    }
    const nb::object rows = feedline::bindings::new_array(parsed.rows.size(), feedline::bindings::numpy().int64);
    if (!parsed.rows.empty())
        std::memcpy(feedline::bindings::memory(rows), parsed.rows.data(), parsed.rows.size() * sizeof(std::int64_t));
    using Column = feedline::ParquetColumn;
    return nb::make_tuple(rows, parsed.width, field_of(parsed.columns, &Column::values),
                          field_of(parsed.columns, &Column::uncompressed),
                          field_of(parsed.columns, &Column::compressed), field_of(parsed.columns, &Column::begin),
                          field_of(parsed.columns, &Column::nulls));
}

nb::object page(nb::handle data) {
    const BufferView view(data);
    feedline::ParquetPage parsed{};
    try {
        if (!feedline::parse_parquet_page(static_cast<const std::uint8_t*>(view.data()), view.size(), parsed))
            return nb::none();
    } catch (const feedline::ParquetError& error) {
        raise(error);
    }
    return nb::make_tuple(parsed.header, parsed.compressed, parsed.uncompressed, parsed.values);
}

}  // namespace

void bind_parquet(nb::module_& m) {
    m.def("parquet_footer", &footer, "data"_a,
          "Parse a footer and return (rows, width, values, uncompressed, compressed, begin, nulls).\n\n"
          "rows: int64[row groups]. width: number of columns. values, uncompressed, compressed, begin, nulls:\n"
          "int64[row groups * width], one entry for each column of each row group: number of values, bytes\n"
          "uncompressed and compressed, offset in the file, and number of nulls, -1 if it is unknown.\n"
          "ValueError(what, byte) for a damaged footer.");
    m.def("parquet_page", &page, "data"_a,
          "Parse the header at the beginning of `data` and return (header, compressed, uncompressed, values):\n"
          "the bytes of the header and of the page, compressed and not, and its number of values. None if the\n"
          "header is longer than `data`. ValueError(what, byte) for a damaged header.");
}
