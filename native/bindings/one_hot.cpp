#include "feedline/one_hot.h"

#include <nanobind/nanobind.h>

#include "arrays.h"
#include "faults.h"
#include "feedline/guard.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace feedline;
using namespace feedline::bindings;
using namespace nb::literals;

namespace {

// Fewer elements are done before another thread could use the GIL.
constexpr std::size_t kHoldGil = std::size_t{1} << 14;

// A read-only view of a C-contiguous matrix of float32 or float64.
class Matrix {
public:
    explicit Matrix(nb::handle array) {
        if (PyObject_GetBuffer(array.ptr(), &buffer_, PyBUF_ND | PyBUF_FORMAT) != 0) {
            PyErr_Clear();
            refuse(array);
        }
        const char* format = buffer_.format;
        const bool plain = buffer_.ndim == 2 && format != nullptr && format[0] != 0 && format[1] == 0;
        if (!plain || (format[0] != 'f' && format[0] != 'd')) {
            PyBuffer_Release(&buffer_);
            refuse(array);
        }
    }
    ~Matrix() { PyBuffer_Release(&buffer_); }
    Matrix(const Matrix&) = delete;
    Matrix& operator=(const Matrix&) = delete;

    std::size_t count() const { return static_cast<std::size_t>(buffer_.shape[0]); }
    std::size_t width() const { return static_cast<std::size_t>(buffer_.shape[1]); }
    bool classes(std::int64_t* out) const {
        return buffer_.itemsize == sizeof(float)
                   ? one_hot_classes(static_cast<const float*>(buffer_.buf), count(), width(), out)
                   : one_hot_classes(static_cast<const double*>(buffer_.buf), count(), width(), out);
    }

private:
    [[noreturn]] static void refuse(nb::handle array) {
        raise<nb::type_error>({"expected a C-contiguous matrix of float32 or float64, got ", describe(array)});
    }

    Py_buffer buffer_;
};

nb::object classes(nb::handle rows) {
    const Matrix matrix(rows);
    const nb::object numbers = new_array(matrix.count(), numpy().int64);
    auto* out = data_of<std::int64_t>(numbers);
    bool one_hot = false;
    const auto work = [&] { one_hot = matrix.classes(out); };
    const void* unreadable;
    if (matrix.count() * matrix.width() < kHoldGil) {
        unreadable = guarded(work);
    } else {
        const Unlocked unlocked;
        unreadable = guarded(work);
    }
    if (unreadable != nullptr) raise_fault("unreadable", address_of(unreadable));
    return one_hot ? numbers : nb::none();
}

}  // namespace

void bind_one_hot(nb::module_& m) {
    m.def("one_hot_classes", &classes, "rows"_a,
          "Return the class of each of `rows` (n, width), float32 or float64, as int64[n], or None if one of them is\n"
          "not zeros and a single 1. DataError as in copied().");
}
