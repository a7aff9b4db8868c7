#include "fresh_arrays.h"

#include <new>

using namespace nanobind::literals;

namespace feedline::bindings {

namespace {

// The memory of an array, and the object that the array refers to.
class ArrayMemory {
public:
    explicit ArrayMemory(std::size_t bytes) : piece_(RecycledMemory::of_minibatches().take(bytes)), bytes_(bytes) {}
    ~ArrayMemory() { RecycledMemory::of_minibatches().give_back(piece_); }
    ArrayMemory(const ArrayMemory&) = delete;
    ArrayMemory& operator=(const ArrayMemory&) = delete;

    std::byte* begin() const { return piece_.begin; }
    std::size_t bytes() const { return bytes_; }

private:
    RecycledMemory::Piece piece_;
    std::size_t bytes_;
};

void release_memory() {
    RecycledMemory::of_minibatches().release();
    RecycledMemory::of_chunks().release();
}

nb::tuple memory_usage() {
    const RecycledMemory::Usage minibatches = RecycledMemory::of_minibatches().usage();
    const RecycledMemory::Usage chunks = RecycledMemory::of_chunks().usage();
    return nb::make_tuple(minibatches.in_use + chunks.in_use, minibatches.unused + chunks.unused);
}

int fill_buffer(PyObject* self, Py_buffer* buffer, int flags) {
    const ArrayMemory& memory = *nb::inst_ptr<ArrayMemory>(self);
    return PyBuffer_FillInfo(buffer, self, memory.begin(), static_cast<Py_ssize_t>(memory.bytes()), 0, flags);
}

}  // namespace

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

nb::object new_memory(nb::handle shape, nb::handle dtype, std::size_t bytes) {
    if (bytes >= kMinRecycledBytes) {
        try {
            return numpy().ndarray(shape, dtype, nb::cast(new ArrayMemory(bytes), nb::rv_policy::take_ownership));
        } catch (const std::bad_alloc&) {
            // numpy's error names the shape.
        }
    }
    return numpy().empty(shape, dtype);
}

nb::object new_aligned(nb::handle shape, nb::handle dtype, std::size_t bytes) {
    if (bytes >= kMinRecycledBytes) return new_memory(shape, dtype, bytes);
    const nb::object buffer = new_array(bytes + kArrayAlign - 1, numpy().uint8);
    const auto address = reinterpret_cast<std::uintptr_t>(memory(buffer));
    return numpy().ndarray(shape, dtype, buffer, (kArrayAlign - address % kArrayAlign) % kArrayAlign);
}

nb::object new_rows(std::int64_t n, const Rows& rows, bool aligned) {
    if (aligned) return new_aligned(shape_of(n, rows.shape), rows.dtype, static_cast<std::size_t>(n) * rows.bytes);
    const std::size_t bytes = static_cast<std::size_t>(n) * rows.bytes;
    if (bytes < kMinRecycledBytes && rows.numbers()) return new_array(static_cast<std::size_t>(n), rows.dtype);
    return new_memory(shape_of(n, rows.shape), rows.dtype, bytes);
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

void bind_fresh_arrays(nanobind::module_& m) {
    using namespace feedline;
    using namespace feedline::bindings;
    static PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(fill_buffer)}, {0, nullptr}};
    nb::class_<ArrayMemory>(m, "ArrayMemory", nb::type_slots(slots),
                            "Writable memory of `nbytes` bytes, of undefined content, that begins at a page. A buffer.\n\n"
                            "It is used again for another one once nothing refers to this one.")
        .def(
            "__init__", [](ArrayMemory* self, std::size_t nbytes) { new (self) ArrayMemory(nbytes); }, "nbytes"_a)
        .def_prop_ro("nbytes", &ArrayMemory::bytes, "Its bytes.");
    m.def(
        "release_memory", &release_memory,
        "Free the memory that no array uses, and the memory of the arrays that there are once they are gone.");
    m.def(
        "memory_usage", &memory_usage,
        "Return the bytes of memory that arrays use, and the bytes that wait to be used again.");
    m.attr("MIN_RECYCLED_BYTES") = kMinRecycledBytes;
}
