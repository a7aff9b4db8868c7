// SPDX-License-Identifier: Apache-2.0
// Views of the tensors of a framework that has DLPack's table of C functions. A view takes tens of nanoseconds, where
// the Python attributes of a tensor take microseconds. The framework is not linked.
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
    int (*from_object)(void* object, Tensor* out);
    void* stream;
};

// Makes views of tensors of exactly one type, or two. No other thread may change a tensor while its view is used, so
// the GIL must be held.
class Viewer {
public:
    explicit Viewer(nb::handle type, nb::handle other = nb::handle()) : type_(type.ptr()), other_(other.ptr()) {
        const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__");
        const auto* table = static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
        if (table == nullptr) throw nb::python_error();
        if (table->major != 1 || table->from_object == nullptr)
            raise<nb::value_error>({"expected version 1 of DLPack's functions, got ", table->major});
        from_object_ = table->from_object;
    }

    // Sets `out` to a view, which is valid as long as the tensor. Returns false for other types, and tensors without
    // strides.
    bool view(nb::handle object, Tensor& out) const {
        auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()));
        if (type != type_ && type != other_) return false;
        if (from_object_(object.ptr(), &out) == 0) return true;
        PyErr_Clear();
        return false;
    }

private:
    PyObject *type_, *other_;
    int (*from_object_)(void*, Tensor*);
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
    for (std::int32_t checked = 0; checked < tensor.ndim; ++checked) {
        // The next dimension is the one whose stride is the size of the dimensions before it.
        std::int32_t next = 0;
        while (next < tensor.ndim && (tensor.shape[next] == 1 || tensor.strides[next] != expected)) ++next;
        if (next == tensor.ndim) break;
        expected *= tensor.shape[next];
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
