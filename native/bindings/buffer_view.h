// SPDX-License-Identifier: Apache-2.0
// Bytes of any kind as arguments of bindings.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>

namespace feedline::bindings {

namespace nb = nanobind;

// A view of any contiguous buffer: bytes, bytearray, memoryview, mmap, a numpy array of any dtype. It keeps the buffer
// alive, and must be created and destroyed with the GIL held.
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

}  // namespace feedline::bindings
