// SPDX-License-Identifier: Apache-2.0
// Arrays for the outputs of gathers, and of other kernels that make the arrays of minibatches. Those of at least
// kMinRecycledBytes are in recycled memory, which is given back with the last reference to them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "arrays.h"
#include "feedline/gather_job.h"
#include "feedline/recycled_memory.h"

namespace feedline::bindings {

// The shape, dtype and bytes of a row of a stream's column.
struct Rows {
    nb::object shape;  // tuple; empty for a column of numbers
    nb::object dtype;
    std::size_t bytes;

    bool numbers() const { return PyTuple_Size(shape.ptr()) == 0; }
};

inline Rows number_rows(nb::handle dtype, std::size_t bytes) { return {nb::make_tuple(), nb::borrow(dtype), bytes}; }

// A new array of `bytes` bytes, uninitialised. The dtype has no objects.
nb::object new_memory(nb::handle shape, nb::handle dtype, std::size_t bytes);

// The same, beginning at a multiple of kArrayAlign.
nb::object new_aligned(nb::handle shape, nb::handle dtype, std::size_t bytes);

// A new one-dimensional array of numbers of `T`, uninitialised.
template <class T>
nb::object new_numbers(std::size_t n, nb::handle dtype) {
    return n < kMinRecycledBytes / sizeof(T) ? new_array(n, dtype)
                                             : new_memory(nb::int_(n), dtype, n * sizeof(T));
}

// A new array (n, *rows.shape), uninitialised. If `aligned`, it begins at a multiple of kArrayAlign.
nb::object new_rows(std::int64_t n, const Rows& rows, bool aligned);

// One array that holds the arrays of many parts, each at a multiple of kArrayAlign.
class PartsArray {
public:
    explicit PartsArray(Rows rows) : rows_(std::move(rows)), layout_(rows_.bytes, rows_.numbers()) {}

    void add(std::int64_t count) { layout_.add(count); }

    // Allocates the array, once all parts were added.
    void make();

    template <class T>
    T* memory(std::size_t part) const {
        return reinterpret_cast<T*>(memory_ + layout_.byte(part));
    }

    // A part's array, (count, *rows.shape): a view.
    nb::object array(std::size_t part) const;

private:
    Rows rows_;
    PartsLayout layout_;
    nb::object array_;
    std::byte* memory_ = nullptr;
};

}  // namespace feedline::bindings
