// SPDX-License-Identifier: Apache-2.0
// Tensors of a framework that gives DLPack's table of C functions: looked at in tens of nanoseconds each, where their
// Python attributes take microseconds. Nothing of the framework is linked.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "arrays.h"

namespace feedline::bindings {

using Tensor = nb::dlpack::dltensor;
inline constexpr std::int32_t kCpu = 1;
inline constexpr std::uint8_t kFloat = 2;
inline constexpr std::uint8_t kBfloat = 4;

// DLPack's DLPackExchangeAPI, version 1.
struct Exchange {
    std::uint32_t major, minor;
    void* previous;
    void* allocate;
    void* to_managed;
    void* from_managed;
    int (*look)(void* object, Tensor* out);
    void* stream;
};

// Looks at tensors of exactly one type, or two; no other thread may change them meanwhile, which the GIL sees to.
class Viewer {
public:
    explicit Viewer(nb::handle type, nb::handle other = nb::handle()) : type_(type.ptr()), other_(other.ptr()) {
        const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__");
        const auto* table = static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
        if (table == nullptr) throw nb::python_error();
        if (table->major != 1 || table->look == nullptr)
            raise<nb::value_error>({"expected version 1 of DLPack's functions, got ", table->major});
        look_ = table->look;
    }

    // False for what is of another type, or has no strides.
    bool look(nb::handle object, Tensor& out) const {
        auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()));
        if (type != type_ && type != other_) return false;
        if (look_(object.ptr(), &out) == 0) return true;
        PyErr_Clear();
        return false;
    }

private:
    PyObject *type_, *other_;
    int (*look_)(void*, Tensor*);
};

inline bool contiguous(const Tensor& tensor) {
    if (tensor.strides == nullptr) return true;
    std::int64_t expected = 1;
    bool dense = true;
    for (std::int32_t d = tensor.ndim; d-- > 0;) {
        if (tensor.shape[d] == 0) return true;
        if (tensor.shape[d] == 1) continue;
        dense = dense && tensor.strides[d] == expected;
        expected *= tensor.shape[d];
    }
    return dense;
}

inline bool same_shape(const Tensor& a, const Tensor& b) {
    return a.ndim == b.ndim && std::equal(a.shape, a.shape + a.ndim, b.shape);
}

inline std::size_t count_of(const Tensor& tensor) {
    std::size_t count = 1;
    for (std::int32_t d = 0; d < tensor.ndim; ++d) count *= static_cast<std::size_t>(tensor.shape[d]);
    return count;
}

// Whether tensors of one shape have their elements in one order.
inline bool same_layout(const Tensor& a, const Tensor& b) {
    if (a.strides == nullptr || b.strides == nullptr) return contiguous(a) && contiguous(b);
    for (std::int32_t d = 0; d < a.ndim; ++d)
        if (a.shape[d] > 1 && a.strides[d] != b.strides[d]) return false;
    return true;
}

// Whether the elements fill their memory without gaps, in any order of dimensions.
inline bool dense(const Tensor& tensor) {
    if (contiguous(tensor)) return true;
    std::int64_t expected = 1;
    for (std::int32_t found = 0, rest = 0; found < tensor.ndim; ++found) {
        // The next dimension is the one whose stride is the size of those before.
        rest = 0;
        while (rest < tensor.ndim && (tensor.shape[rest] == 1 || tensor.strides[rest] != expected)) ++rest;
        if (rest == tensor.ndim) break;
        expected *= tensor.shape[rest];
    }
    return expected == static_cast<std::int64_t>(count_of(tensor));
}

inline bool same_dtype(const Tensor& a, const Tensor& b) {
    return a.dtype.code == b.dtype.code && a.dtype.bits == b.dtype.bits && a.dtype.lanes == b.dtype.lanes;
}

inline std::uintptr_t address_of(const Tensor& tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor.data) + tensor.byte_offset;
}

}  // namespace feedline::bindings
