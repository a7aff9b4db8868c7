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

// What a row of a column of some stream is.
struct Rows {
    nb::object shape;  // tuple; empty for a column of numbers
    nb::object dtype;
    std::size_t bytes;

    bool numbers() const { return PyTuple_Size(shape.ptr()) == 0; }
};

inline Rows number_rows(nb::handle dtype, std::size_t bytes) { return {nb::make_tuple(), nb::borrow(dtype), bytes}; }

// An array of so many bytes that begins at a multiple of kArrayAlign.
nb::object new_aligned(nb::handle shape, nb::handle dtype, std::size_t bytes);

// An array (n, *rows.shape); where `aligned`, it begins at a multiple of kArrayAlign.
nb::object new_rows(std::int64_t n, const Rows& rows, bool aligned);

// One array that holds those of many parts, each at a multiple of kArrayAlign.
class ShelfArray {
public:
    explicit ShelfArray(Rows rows) : rows_(std::move(rows)), shelf_(rows_.bytes, rows_.numbers()) {}

    void add(std::int64_t count) { shelf_.add(count); }

    // Once all were added.
    void make();

    template <class T>
    T* memory(std::size_t part) const {
        return reinterpret_cast<T*>(memory_ + shelf_.byte(part));
    }

    // (count, *rows.shape), a view.
    nb::object array(std::size_t part) const;

private:
    Rows rows_;
    Shelf shelf_;
    nb::object array_;
    std::byte* memory_ = nullptr;
};

}  // namespace feedline::bindings
