// SPDX-License-Identifier: Apache-2.0
// Raises errors in data as exceptions of feedline.data.faults, which adds the file, the stream and the text.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <utility>

namespace feedline::bindings {

namespace nb = nanobind;

inline nb::int_ address_of(const void* address) {
    return nb::int_(static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(address)));
}

// Raises the exception that the function `name` of feedline.data.faults returns for `arguments`.
template <class... Arguments>
[[noreturn]] void raise_fault(const char* name, Arguments&&... arguments) {
    const nb::module_ faults = nb::module_::import_("feedline.data.faults");
    const nb::object error = faults.attr(name)(std::forward<Arguments>(arguments)...);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
    throw nb::python_error();
}

}  // namespace feedline::bindings
