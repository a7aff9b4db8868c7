// Checks, copies and padding of single arrays.
#include "bounds.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "faults.h"
#include "feedline/gather.h"
#include "feedline/guard.h"
#include "fresh_arrays.h"
#include "gatherer.h"
#include "unlocked.h"

using namespace feedline;
using namespace feedline::bindings;
using namespace nb::literals;

void feedline::bindings::check_bounds(const std::string& where, const char* name, const Ints& bounds, std::int64_t end,
                                      const char* unit) {
    const std::string what = (where.empty() ? "" : where + ": ") + "expected `" + name + "` to ";
    if (bounds.size() == 0) raise<nb::value_error>({what, "have at least one entry, got none"});
    const std::int64_t* data = bounds.int64();
    const std::size_t n = bounds.size() - 1;
    std::ptrdiff_t fault = -1;
    std::int64_t bound = 0, next = 0;
    const void* unreadable;
    {
        const Unlocked unlocked;
        unreadable = guarded([&] {
            fault = first_bad_bound(data, n, end);
            if (fault < 0) return;
            bound = data[fault];
            if (static_cast<std::size_t>(fault) < n) next = data[fault + 1];
        });
    }
    if (unreadable != nullptr) raise_fault("unreadable", address_of(unreadable));
    if (fault < 0) return;
    const auto at = static_cast<std::size_t>(fault);
    if (at == 0 && bound != 0) raise<nb::value_error>({what, "start at 0, got ", bound});
    if (at == n)
        raise<nb::value_error>({what, "end at the number of ", unit, ", ", end, ", got ", bound});
    raise<nb::value_error>({what, "never decrease, got ", bound, " then ", next, " at entries ", fault, " and ",
                            fault + 1});
}

static std::int64_t bounds_end(nb::handle array, const std::string& name) {
    const Ints bounds(array, name.c_str(), {Ints::kInt64}, "bounds_end");
    if (bounds.size() == 0) raise<nb::value_error>({"expected ", name, " to have at least one entry, got none"});
    std::int64_t end = 0;
    const void* unreadable = guarded([&] { end = bounds.int64()[bounds.size() - 1]; });
    if (unreadable != nullptr) raise_fault("unreadable", address_of(unreadable));
    check_bounds("", name.c_str(), bounds, end, "rows");
    return end;
}

static std::int64_t py_first_uneven(nb::handle offsets, nb::handle lengths) {
    const Ints bounds(offsets, "offsets", {Ints::kInt64}, "first_uneven");
    const Ints expected(lengths, "lengths", {Ints::kInt32}, "first_uneven");
    if (bounds.size() != expected.size() + 1)
        raise<nb::value_error>({"expected one more offset than lengths, got ", bounds.size(), " and ",
                                expected.size()});
    std::ptrdiff_t place = -1;
    const void* unreadable;
    {
        const Unlocked unlocked;
        unreadable = guarded([&] { place = first_uneven(bounds.int64(), expected.int32(), expected.size()); });
    }
    if (unreadable != nullptr) raise_fault("unreadable", address_of(unreadable));
    return place;
}

static std::int64_t py_first_bad_index(nb::handle array, nb::handle number) {
    const Ints indices(array, "indices", {Ints::kInt32}, "first_bad_index");
    const std::int64_t classes = classes_of(number);
    if (classes < 0) raise<nb::type_error>({"expected a number of classes, got ", text(nb::repr(number))});
    std::size_t place = 0;
    const void* unreadable;
    {
        const Unlocked unlocked;
        unreadable = guarded([&] {
            place = first_bad_index(indices.int32(), 0, indices.size(), static_cast<std::uint32_t>(classes));
        });
    }
    if (unreadable != nullptr) raise_fault("unreadable", address_of(unreadable));
    return place == indices.size() ? -1 : static_cast<std::int64_t>(place);
}

static std::int64_t py_first_bad_text(nb::handle data, nb::handle bounds) {
    const nb::object bytes = checked_ndarray("first_bad_text", "data", data);
    if (text(bytes.attr("dtype").attr("name")) != "uint8" || nb::cast<int>(bytes.attr("ndim")) != 1)
        raise<nb::value_error>({"expected one-dimensional uint8 `data`, got ", describe(bytes)});
    const Ints ends(bounds, "bounds", {Ints::kInt64}, "first_bad_text");
    check_bounds("first_bad_text", "bounds", ends, nb::cast<std::int64_t>(bytes.attr("size")), "bytes");
    const std::byte* from = memory(bytes);
    const std::size_t n = ends.size() - 1;
    std::size_t place = n;
    const void* unreadable;
    {
        const Unlocked unlocked;
        // The bounds were checked, and the caller must not change them meanwhile.
        unreadable = guarded([&] { place = first_bad_text(from, 0, ends.int64() + 1, n); });
    }
    if (unreadable != nullptr) raise_fault("unreadable", address_of(unreadable));
    return place == n ? -1 : static_cast<std::int64_t>(place);
}

static nb::object copied(nb::handle array) {
    // One row of any strides.
    const nb::object from = nb::isinstance(array, numpy().ndarray)
                                ? nb::object(array.attr("__getitem__")(nb::none()))
                                : nb::borrow(array);
    const CheckedStream row = check_dense("copied", nb::make_tuple(from, nb::none()));
    const DenseSource& rows = row.source.dense;
    const nb::object out = numpy().empty(array.attr("shape"), array.attr("dtype"));
    std::byte* to = memory(out);
    const void* unreadable;
    {
        const Unlocked unlocked;
        const std::int64_t first = 0;
        const Picks pick{nullptr, &first, 1};
        unreadable = guarded([&] {
            if (rows.layout != nullptr)
                copy_strided_rows(pick, &rows, row.source.item_bytes, to, 0, 1);
            else
                copy_rows(pick, &rows, row.source.item_bytes, to, 0, 1);
        });
    }
    if (unreadable != nullptr) raise_fault("unreadable", address_of(unreadable));
    return out;
}

static nb::tuple py_pad(nb::handle rows, nb::handle offsets, nb::handle fill, std::int64_t length) {
    const nb::object packed = checked_ndarray("pad", "rows", rows);
    const nb::object filler = checked_ndarray("pad", "fill", fill);
    const nb::tuple shape(packed.attr("shape"));
    const nb::object dtype = packed.attr("dtype");
    if (shape.size() == 0)
        raise<nb::value_error>({"pad: expected `rows` to have at least one axis, got ", describe(packed)});
    if (!nb::object(filler.attr("dtype")).equal(dtype) || nb::cast<std::int64_t>(filler.attr("size")) != 1)
        raise<nb::value_error>({"pad: expected `fill` to be one ", text(dtype), " value in an array, got ",
                                describe(filler)});
    const Ints bounds(offsets, "offsets", {Ints::kInt64}, "pad");
    check_bounds("pad", "offsets", bounds, nb::cast<std::int64_t>(shape[0]), "rows");
    const std::size_t n = bounds.size() - 1;
    std::int64_t longest = 0;
    for (std::size_t i = 0; i < n; ++i)
        longest = std::max(longest, bounds.int64()[i + 1] - bounds.int64()[i]);
    if (length < -1 || (length >= 0 && length < longest))
        raise<nb::value_error>({"pad: expected a length of at least the longest sequence, ", longest,
                                ", or -1 for that, got ", length});
    if (length < 0) length = longest;

    nb::list padded_shape;
    padded_shape.append(n);
    padded_shape.append(length);
    const auto element_bytes = nb::cast<std::size_t>(dtype.attr("itemsize"));
    std::size_t row_bytes = element_bytes;
    for (std::size_t axis = 1; axis < shape.size(); ++axis) {
        padded_shape.append(shape[axis]);
        row_bytes *= nb::cast<std::size_t>(shape[axis]);
    }
    std::size_t bytes;
    if (__builtin_mul_overflow(n, static_cast<std::size_t>(length), &bytes) ||
        __builtin_mul_overflow(bytes, row_bytes, &bytes) || bytes > PTRDIFF_MAX - kArrayAlign)
        raise<nb::value_error>({"pad: expected a length whose padded sequences fit into memory, got ", length});
    nb::object out = new_aligned(nb::tuple(padded_shape), dtype, bytes);
    nb::object mask = new_memory(nb::make_tuple(n, length), numpy().boolean, n * static_cast<std::size_t>(length));
    const std::byte* from = memory(packed);
    const std::byte* element = memory(filler);
    std::byte* to = memory(out);
    bool* real = data_of<bool>(mask);
    {
        const Unlocked unlocked;
        pad(from, bounds.int64(), n, row_bytes, element, element_bytes, static_cast<std::size_t>(length), to,
            real);
    }
    return nb::make_tuple(out, mask);
}

void bind_array_checks(nb::module_& m) {
    m.def("copied", &copied, "array"_a,
          "Return a copy of an array. DataError if it is mapped from a file that was truncated or whose disk\n"
          "fails, which would kill the process if numpy copied it.");
    m.def("bounds_end", &bounds_end, "bounds"_a, "name"_a,
          "Return the last entry of `bounds` (int64[n + 1]). ValueError, with `name` in its text, unless they\n"
          "begin at 0 and never decrease. DataError as in copied().");
    m.def("first_bad_index", &py_first_bad_index, "indices"_a, "classes"_a,
          "Return the place of the first of `indices` (int32[n]) outside [0, classes), or -1. DataError as in\n"
          "copied().");
    m.def("first_bad_text", &py_first_bad_text, "data"_a, "bounds"_a,
          "Return the place of the first of the strings data[bounds[i]:bounds[i + 1]] (uint8[n], int64[m + 1]) that\n"
          "is not UTF-8, or -1. ValueError for bounds that do not fit. DataError as in copied().");
    m.def("first_uneven", &py_first_uneven, "offsets"_a, "lengths"_a,
          "Return the place of the first of `lengths` (int32[n]) that differs from the length between its\n"
          "neighbours in `offsets` (int64[n + 1]), or -1. DataError as in copied().");
    m.def("pad", &py_pad, "rows"_a.none(), "offsets"_a.none(), "fill"_a.none(), "length"_a = -1,
          "Return packed sequences as a padded copy (n, T, *shape), and a mask, bool (n, T), of the real rows.\n\n"
          "rows: (N, *shape). offsets: int64[n + 1]. fill: an array of one element, of the dtype of rows. T is\n"
          "`length`, or for -1 the length of the longest sequence. ValueError if `length` is shorter than that,\n"
          "or if the offsets do not fit the rows.");
}
