#include "fresh_arrays.h"

namespace feedline::bindings {

// (n, *row_shape)
static nb::object shape_of(std::int64_t n, const nb::object& row_shape) {
    const auto axes = static_cast<std::size_t>(PyTuple_Size(row_shape.ptr()));
    nb::object shape = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(axes + 1)));
    if (!shape.is_valid()) throw nb::python_error();
    PyTuple_SetItem(shape.ptr(), 0, nb::int_(n).release().ptr());
    for (std::size_t axis = 0; axis < axes; ++axis) {
        PyObject* size = PyTuple_GetItem(row_shape.ptr(), static_cast<Py_ssize_t>(axis));
        Py_INCREF(size);
        PyTuple_SetItem(shape.ptr(), static_cast<Py_ssize_t>(axis + 1), size);
    }
    return shape;
}

nb::object new_aligned(nb::handle shape, nb::handle dtype, std::size_t bytes) {
    const nb::object buffer = new_array(bytes + kArrayAlign - 1, numpy().uint8);
    const auto address = reinterpret_cast<std::uintptr_t>(memory(buffer));
    return numpy().ndarray(shape, dtype, buffer, (kArrayAlign - address % kArrayAlign) % kArrayAlign);
}

nb::object new_rows(std::int64_t n, const Rows& rows, bool aligned) {
    if (aligned) return new_aligned(shape_of(n, rows.shape), rows.dtype, static_cast<std::size_t>(n) * rows.bytes);
    if (rows.numbers()) return new_array(static_cast<std::size_t>(n), rows.dtype);
    return numpy().empty(shape_of(n, rows.shape), rows.dtype);
}

void PartsArray::make() {
    const auto size = static_cast<std::int64_t>(layout_.size());
    array_ = new_rows(size, layout_.by_bytes() ? number_rows(numpy().uint8, 1) : rows_, true);
    memory_ = bindings::memory(array_);
}

nb::object PartsArray::array(std::size_t part) const {
    const std::size_t at = layout_.at(part);
    const std::int64_t count = layout_.rows(part);
    if (layout_.by_bytes()) return numpy().ndarray(shape_of(count, rows_.shape), rows_.dtype, array_, at);
    const nb::object begin = nb::int_(at), end = nb::int_(at + static_cast<std::size_t>(count));
    const nb::object slice = nb::steal(PySlice_New(begin.ptr(), end.ptr(), nullptr));
    if (!slice.is_valid()) throw nb::python_error();
    nb::object view = nb::steal(PyObject_GetItem(array_.ptr(), slice.ptr()));
    if (!view.is_valid()) throw nb::python_error();
    return view;
}

}  // namespace feedline::bindings
