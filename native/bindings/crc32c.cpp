#include "feedline/crc32c.h"

#include <nanobind/nanobind.h>

#include <stdexcept>

#include "faults.h"
#include "feedline/guard.h"

namespace nb = nanobind;

namespace {

// Any contiguous buffer: bytes, bytearray, memoryview, mmap, a numpy array of any dtype.
class BufferView {
public:
    explicit BufferView(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
    }
    ~BufferView() { PyBuffer_Release(&view_); }
    BufferView(const BufferView&) = delete;
    BufferView& operator=(const BufferView&) = delete;
    const void* data() const { return view_.buf; }
    std::size_t size() const { return static_cast<std::size_t>(view_.len); }

private:
    Py_buffer view_{};
};

std::uint32_t checksum(nb::handle data, std::uint32_t value) {
    const BufferView view(data);
    std::uint32_t sum = 0;
    const auto work = [&] { sum = feedline::crc32c(view.data(), view.size(), value); };
    const void* unreadable;
    // Below some thousand bytes handing over the GIL costs more than the sum itself.
    if (view.size() < 16384) {
        unreadable = feedline::guarded(work);
    } else {
        nb::gil_scoped_release unlocked;
        unreadable = feedline::guarded(work);
    }
    if (unreadable != nullptr)
        feedline::bindings::raise_fault("unreadable", feedline::bindings::address_of(unreadable));
    return sum;
}

}  // namespace

void bind_crc32c(nb::module_& m) {
    m.def("crc32c", &checksum, nb::arg("data"), nb::arg("value") = 0,
          "CRC-32C of a C-contiguous buffer, continued from `value` (that of what came before). DataError\n"
          "if it is mapped from a file that was cut, or whose disk fails.");
}
