// SPDX-License-Identifier: Apache-2.0
// Arrays for the outputs of gathers.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "arrays.h"
#include "feedline/gather_job.h"

namespace feedline::bindings {

// The shape, dtype and bytes of a row of a stream's column.
struct Rows {
    nb::object shape;  // tuple; empty for a column of numbers
    nb::object dtype;
    std::size_t bytes;

    bool numbers() const { return PyTuple_Size(shape.ptr()) == 0; }
};

inline Rows number_rows(nb::handle dtype, std::size_t bytes) { return {nb::make_tuple(), nb::borrow(dtype), bytes}; }

// A new array of `bytes` bytes that begins at a multiple of kArrayAlign, uninitialised.
nb::object new_aligned(nb::handle shape, nb::handle dtype, std::size_t bytes);

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
