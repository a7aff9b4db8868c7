// Paths in Python's form, in which bytes that are not UTF-8 are lone surrogates (PEP 383).
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace feedline::bindings {

// The bytes of a path, as `os.fsencode` returns them. Throws nanobind's error for anything but a path.
inline std::string bytes_of_path(nanobind::handle path) {
    PyObject* encoded = nullptr;
    if (PyUnicode_FSConverter(path.ptr(), &encoded) == 0) throw nanobind::python_error();
    const nanobind::object owner = nanobind::steal(encoded);
    return {PyBytes_AsString(encoded), static_cast<std::size_t>(PyBytes_Size(encoded))};
}

// The path of these bytes, as `os.fsdecode` returns it.
inline nanobind::object path_of_bytes(const std::string& bytes) {
    PyObject* path = PyUnicode_DecodeFSDefaultAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
    if (path == nullptr) throw nanobind::python_error();
    return nanobind::steal(path);
}

}  // namespace feedline::bindings
