// Checks of the arrays of chunks that are added to a Gatherer, before it changes.
#include <nanobind/stl/string.h>

#include <string>
#include <string_view>
#include <vector>

#include "bounds.h"
#include "faults.h"
#include "feedline/guard.h"
#include "gatherer.h"

namespace feedline::bindings {

// The layout of rows with strides, in a capsule that owns it.
static nb::capsule layout_of(nb::handle rows, std::size_t item_bytes) {
    const nb::tuple lengths(rows.attr("shape")), strides(rows.attr("strides"));
    std::vector<std::size_t> shape;
    std::vector<std::ptrdiff_t> steps;
    for (std::size_t axis = 0; axis < lengths.size(); ++axis) {
        shape.push_back(nb::cast<std::size_t>(lengths[axis]));
        steps.push_back(nb::cast<std::ptrdiff_t>(strides[axis]));
    }
    auto* layout = new RowLayout(RowLayout::of(shape.data(), steps.data(), shape.size(), item_bytes));
    return nb::capsule(layout, [](void* p) noexcept { delete static_cast<RowLayout*>(p); });
}

// Sets the dtype of a stream's column.
static void set_dtype(CheckedStream& stream, nb::handle array) {
    stream.column.dtype = array.attr("dtype");
    const std::string kind = text(stream.column.dtype.attr("kind"));
    stream.column.inexact = std::string_view("biuSUmM").find(kind) == std::string_view::npos;
    stream.source.bools = kind == "b";
    stream.source.item_bytes = nb::cast<std::size_t>(stream.column.dtype.attr("itemsize"));
}

// Returns offsets of sequences, or null for None, and sets the number of sequences in `num_rows` rows.
static const std::int64_t* offsets_of(const std::string& where, nb::handle array, std::int64_t num_rows,
                                      const char* unit, CheckedStream& stream) {
    stream.sequences = num_rows;
    if (array.is_none()) return nullptr;
    const Ints offsets(array, "offsets", {Ints::kInt64}, where);
    check_bounds(where, "offsets", offsets, num_rows, unit);
    stream.sequences = static_cast<std::int64_t>(offsets.size()) - 1;
    return offsets.int64();
}

// Makes windows of a dense stream's rows. value: (rows, offsets, middles, firsts, ends, steps, zeros, shape).
static void set_windows(const std::string& where, nb::tuple value, CheckedStream& stream) {
    DenseSource& dense = stream.source.dense;
    const Ints middles(value[2], "middles", {Ints::kInt64}, where), firsts(value[3], "firsts", {Ints::kInt64}, where);
    const Ints ends(value[4], "ends", {Ints::kInt64}, where);
    const std::size_t n = firsts.size();
    auto* windows = new RowWindows{middles.int64(), firsts.int64(), ends.int64(), nullptr, 0, dense.num_rows,
                                   stream.source.item_bytes, nb::cast<bool>(value[6]), false, false};
    stream.layout = nb::capsule(windows, [](void* p) noexcept { delete static_cast<RowWindows*>(p); });
    if (value[5].is_none()) {
        windows->by_place = true;
        windows->count = n == 0 ? 0 : middles.size() / n;
    } else {
        const Ints steps(value[5], "steps", {Ints::kInt64}, where);
        windows->steps = steps.int64();
        windows->count = steps.size();
        windows->consecutive = true;
        for (std::size_t k = 0; k < steps.size(); ++k)
            windows->consecutive &= steps.int64()[k] - steps.int64()[0] == static_cast<std::int64_t>(k);
    }
    if (ends.size() != n || middles.size() != n * (windows->by_place ? windows->count : 1))
        raise<nb::value_error>({where, ": expected as many `middles` and `ends` as `firsts`, ", n, ", got ",
                                middles.size(), " and ", ends.size()});
    if (const std::size_t bad = first_bad_window(*windows, n); bad < n)
        raise<nb::value_error>({where, ": expected a sequence within ", dense.num_rows, " rows for each window, got ",
                                firsts.int64()[bad], " to ", ends.int64()[bad], " for window ", bad});
    dense.windows = windows;
    dense.num_rows = static_cast<std::int64_t>(n);
    const nb::tuple shape(value[7]);
    std::size_t size = 1, row_size = windows->count;
    for (const nb::handle dim : shape) size *= nb::cast<std::size_t>(dim);
    for (const nb::handle dim : nb::tuple(stream.column.row_shape)) row_size *= nb::cast<std::size_t>(dim);
    if (size != row_size)
        raise<nb::value_error>({where, ": expected windows of ", row_size, " numbers, got shape ", text(shape)});
    stream.source.item_bytes *= windows->count;
    stream.column.row_shape = shape;
}

CheckedStream check_dense(const std::string& where, nb::tuple value) {
    if (value.size() != 2 && value.size() != 8)
        raise<nb::value_error>({where, ": expected (rows, offsets) for a dense stream, got a tuple of length ",
                                value.size()});
    const bool windowed = value.size() == 8;
    CheckedStream stream;
    DenseSource& dense = stream.source.dense;
    // Rows may be views, but not with offsets, as sequences of several rows are copied at once.
    const bool strided = !windowed && value[1].is_none() && nb::isinstance(value[0], numpy().ndarray) && !is_contiguous(value[0]) &&
                         !nb::cast<bool>(value[0].attr("dtype").attr("hasobject"));
    const nb::object rows = strided ? nb::borrow(value[0]) : checked_ndarray(where, "rows", value[0]);
    const nb::tuple shape(rows.attr("shape"));
    if (shape.size() == 0)
        raise<nb::value_error>({where, ": expected `rows` to have at least one axis, got ", describe(rows)});
    set_dtype(stream, rows);
    const std::size_t element_bytes = stream.source.item_bytes;
    stream.column.row_shape = shape.attr("__getitem__")(nb::slice(nb::int_(1), nb::none(), nb::none()));
    dense.num_rows = nb::cast<std::int64_t>(shape[0]);
    for (std::size_t axis = 1; axis < shape.size(); ++axis)
        stream.source.item_bytes *= nb::cast<std::size_t>(shape[axis]);
    if (strided) {
        stream.layout = layout_of(rows, element_bytes);
        dense.layout = static_cast<const RowLayout*>(stream.layout.data());
        const nb::object place = rows.attr("__array_interface__")["data"];
        dense.rows = reinterpret_cast<const std::byte*>(nb::cast<std::uintptr_t>(place[nb::int_(0)]));
    } else {
        dense.rows = memory(rows);
    }
    if (windowed) set_windows(where, value, stream);
    dense.offsets = offsets_of(where, value[1], dense.num_rows, "rows", stream);
    return stream;
}

// Byte strings are sparse rows of bytes without indices.
static CheckedStream check_bytes(const std::string& where, nb::tuple value) {
    if (value.size() != 3 && value.size() != 2)
        raise<nb::value_error>({where, ": expected (bounds, data, offsets) or (spans, data) for a stream of bytes, got "
                                "a tuple of length ", value.size()});
    CheckedStream stream;
    SparseSource& sparse = stream.source.sparse;
    const nb::object data = checked_ndarray(where, "data", value[1]);
    set_dtype(stream, data);
    stream.column.row_shape = nb::make_tuple();
    if (text(stream.column.dtype.attr("name")) != "uint8" || nb::cast<int>(data.attr("ndim")) != 1)
        raise<nb::value_error>({where, ": expected one-dimensional uint8 `data`, got ", describe(data)});
    sparse.values = memory(data);
    sparse.num_values = nb::cast<std::int64_t>(data.attr("size"));
    if (value.size() == 2) {
        const Ints spans(value[0], "spans", {Ints::kInt64}, where);
        const std::size_t n = spans.size() / 2, bad = first_bad_span(spans.int64(), n, sparse.num_values);
        if (spans.size() % 2 != 0 || bad < n)
            raise<nb::value_error>({where, ": expected `spans` as begin and end of each sample within ",
                                    sparse.num_values, " bytes, got other numbers for sample ", bad});
        sparse.indptr = spans.int64();
        sparse.spans = true;
        stream.sequences = sparse.num_rows = static_cast<std::int64_t>(n);
        return stream;
    }
    const Ints bounds(value[0], "bounds", {Ints::kInt64}, where);
    check_bounds(where, "bounds", bounds, sparse.num_values, "bytes");
    sparse.indptr = bounds.int64();
    sparse.num_rows = static_cast<std::int64_t>(bounds.size()) - 1;
    sparse.offsets = offsets_of(where, value[2], sparse.num_rows, "samples", stream);
    return stream;
}

CheckedStream check_sparse(const std::string& where, nb::tuple value, std::int64_t classes) {
    if (classes < 0) return check_bytes(where, value);
    if (value.size() != 4)
        raise<nb::value_error>({where, ": expected (indptr, indices, values, offsets) for a sparse stream, got a tuple "
                                "of length ", value.size()});
    CheckedStream stream;
    SparseSource& sparse = stream.source.sparse;
    const nb::object values = checked_ndarray(where, "values", value[2]);
    set_dtype(stream, values);
    stream.column.row_shape = nb::make_tuple();
    const nb::object& dtype = stream.column.dtype;
    const std::size_t bytes = stream.source.item_bytes;
    const bool is_float = text(dtype.attr("kind")) == "f" && nb::cast<bool>(dtype.attr("isnative")) &&
                          (bytes == 4 || bytes == 8);
    if (!is_float || nb::cast<int>(values.attr("ndim")) != 1)
        raise<nb::value_error>({where, ": expected one-dimensional float32 or float64 `values`, got ",
                                describe(values)});
    sparse.values = memory(values);
    sparse.num_values = nb::cast<std::int64_t>(values.attr("size"));
    const Ints indices(value[1], "indices", {Ints::kInt32}, where);
    if (static_cast<std::int64_t>(indices.size()) != sparse.num_values)
        raise<nb::value_error>({where, ": expected as many `indices` as `values`, ", sparse.num_values, ", got ",
                                indices.size()});
    sparse.indices = indices.int32();
    const Ints indptr(value[0], "indptr", {Ints::kInt64}, where);
    check_bounds(where, "indptr", indptr, sparse.num_values, "values");
    sparse.indptr = indptr.int64();
    sparse.num_rows = static_cast<std::int64_t>(indptr.size()) - 1;
    sparse.offsets = offsets_of(where, value[3], sparse.num_rows, "rows", stream);
    return stream;
}

Seal check_seal(nb::handle array) {
    const nb::object bytes = checked_ndarray("seal", "seal", array);
    if (nb::cast<std::size_t>(bytes.attr("nbytes")) != sizeof(std::uint64_t))
        raise<nb::value_error>({"expected a seal of 8 bytes, got ", describe(bytes)});
    Seal seal{memory(bytes), 0};
    const void* unreadable = guarded([&] { seal.expected = read_seal(seal.bytes); });
    if (unreadable != nullptr) raise_fault("unreadable", address_of(unreadable));
    return seal;
}

}  // namespace feedline::bindings
