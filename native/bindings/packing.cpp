#include "feedline/packing.h"

#include <string>

#include "arrays.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace feedline;
using namespace feedline::bindings;
using namespace nb::literals;

namespace {

constexpr std::int64_t kMaxRuns = 64;

enum class Method { kBestFit, kFirstFit };

template <class T>
nb::tuple place_in_order(Method method, const std::string& name, const Ints& lengths, std::int64_t row,
                         const T* order) {
    const std::size_t n = lengths.size();
    const nb::object row_of = new_array(n, numpy().int64), offset = new_array(n, numpy().int64);
    auto* rows_data = data_of<std::int64_t>(row_of);
    auto* offsets_data = data_of<std::int64_t>(offset);
    std::ptrdiff_t bad_length, bad_order = -1;
    std::int64_t rows = 0;
    {
        const Unlocked unlocked;
        bad_length = first_bad_length(lengths.int64(), n, row);
        if (order != nullptr && bad_length < 0) bad_order = first_repeated(order, n);
        if (bad_length < 0 && bad_order < 0)
            rows = (method == Method::kBestFit ? best_fit<T> : first_fit<T>)(lengths.int64(), order, n, row,
                                                                             rows_data, offsets_data);
    }
    if (bad_length >= 0)
        raise<nb::value_error>({name, ": expected lengths from 1 to row = ", row, ", got lengths[", bad_length, "] = ",
                                lengths.int64()[bad_length],
                                "; split or drop longer documents first, and drop empty ones"});
    if (bad_order >= 0)
        raise<nb::value_error>({name, ": expected `order` to have each of 0 to ", n - 1, " once, got order[", bad_order,
                                "] = ", order[bad_order]});
    return nb::make_tuple(row_of, offset, rows);
}

nb::tuple place(Method method, const std::string& name, nb::handle lengths, std::int64_t row, nb::handle order) {
    const Ints sizes(lengths, "lengths", {Ints::kInt64}, name);
    if (row < 1 || row > kMaxRow)
        raise<nb::value_error>({name, ": expected a row of 1 to ", kMaxRow, ", got ", row});
    if (sizes.size() > kMaxDocuments)
        raise<nb::value_error>({name, ": expected fewer than 2**31 documents, got ", sizes.size()});
    if (order.is_none()) return place_in_order<std::int64_t>(method, name, sizes, row, nullptr);
    const Ints numbers(order, "order", {Ints::kInt64, Ints::kUint32}, name);
    if (numbers.size() != sizes.size())
        raise<nb::value_error>({name, ": expected `order` to be as long as `lengths`, ", sizes.size(), ", got ",
                                numbers.size()});
    return numbers.type() == Ints::kInt64 ? place_in_order(method, name, sizes, row, numbers.int64())
                                          : place_in_order(method, name, sizes, row, numbers.uint32());
}

nb::tuple py_best_fit(nb::handle lengths, std::int64_t row, nb::handle order) {
    return place(Method::kBestFit, "best_fit", lengths, row, order);
}

nb::tuple py_first_fit(nb::handle lengths, std::int64_t row, nb::handle order) {
    return place(Method::kFirstFit, "first_fit", lengths, row, order);
}

nb::tuple py_row_contents(nb::handle rows, nb::handle offsets, std::int64_t count) {
    const Ints row_of(rows, "rows", {Ints::kInt64}, "row_contents");
    const Ints offset(offsets, "offsets", {Ints::kInt64}, "row_contents");
    const std::size_t n = row_of.size();
    if (offset.size() != n)
        raise<nb::value_error>({"row_contents: expected `rows` and `offsets` of equal length, got ", n, " and ",
                                offset.size()});
    if (count < 0) raise<nb::value_error>({"row_contents: expected a count of rows >= 0, got ", count});
    // numpy refuses sizes that do not fit into memory, and a count whose increment overflows.
    const nb::object starts = new_array(static_cast<std::size_t>(count) + 1, numpy().int64);
    const nb::object documents = new_array(n, numpy().int64);
    auto* starts_data = data_of<std::int64_t>(starts);
    auto* documents_data = data_of<std::int64_t>(documents);
    std::ptrdiff_t bad;
    {
        const Unlocked unlocked;
        bad = first_bad_row(row_of.int64(), n, count);
        if (bad < 0) row_contents(row_of.int64(), offset.int64(), n, count, starts_data, documents_data);
    }
    if (bad >= 0)
        raise<nb::value_error>({"row_contents: expected rows from 0 to below the count of rows, ", count, ", got rows[",
                                bad, "] = ", row_of.int64()[bad]});
    return nb::make_tuple(starts, documents);
}

nb::list py_run_ends(nb::handle ends, std::int64_t at, std::int64_t limit, std::int64_t room, bool alone,
                     std::int64_t max_runs) {
    const Ints bounds(ends, "ends", {Ints::kInt64}, "run_ends");
    const auto n = static_cast<std::int64_t>(bounds.size()) - 1;
    if (at < 0 || at > limit || limit > n)
        raise<nb::value_error>({"run_ends: expected 0 <= at <= limit <= ", n, ", got at = ", at, " and limit = ",
                                limit});
    if (room < 0 || max_runs < 1 || max_runs > kMaxRuns)
        raise<nb::value_error>({"run_ends: expected room >= 0 and max_runs from 1 to ", kMaxRuns, ", got room = ", room,
                                " and max_runs = ", max_runs});
    std::int64_t out[kMaxRuns];
    const std::size_t count =
        run_ends(bounds.int64(), static_cast<std::size_t>(at), static_cast<std::size_t>(limit), room, alone,
                 static_cast<std::size_t>(max_runs), out);
    nb::list stops;
    for (std::size_t i = 0; i < count; ++i) stops.append(out[i]);
    return stops;
}

}  // namespace

void bind_packing(nb::module_& m) {
    m.def("best_fit", &py_best_fit, "lengths"_a.none(), "row"_a, "order"_a.none() = nb::none(),
          "Return the row of each document (int64[n]), its offset in it (int64[n]), and the number of rows, by\n"
          "best-fit decreasing.\n\n"
          "lengths: int64[n], 1 to row each. row: 1 to 2**24. order: a permutation of 0 … n-1 (int64[n] or\n"
          "uint32[n]), by which documents of equal length are taken, None: by number. The number of rows does not\n"
          "depend on it. ValueError for other lengths, rows or orders.");
    m.def("first_fit", &py_first_fit, "lengths"_a.none(), "row"_a, "order"_a.none() = nb::none(),
          "Return the row of each document, its offset in it, and the number of rows, as best_fit() does, by\n"
          "first-fit: documents are taken by `order`, and each goes into the first row that has room for it.");
    m.def("row_contents", &py_row_contents, "rows"_a.none(), "offsets"_a.none(), "count"_a,
          "Return the documents of each of `count` rows: (starts int64[count + 1], documents int64[n]). Row r has\n"
          "documents[starts[r]:starts[r + 1]], ordered by offset.\n\n"
          "rows, offsets: int64[n], as best_fit() returns them. ValueError for a row outside 0 … count-1.");
    m.def("run_ends", &py_run_ends, "ends"_a, "at"_a, "limit"_a, "room"_a, "alone"_a = true, "max_runs"_a = 1,
          "Return the ends of runs of sequences with at most `room` samples each, the first from index `at`.\n\n"
          "ends: int64[n + 1], samples before each sequence, and of all, ascending. A run stops once it is full. A\n"
          "single longer sequence is a run, for the first run only if `alone`. No run goes beyond `limit`, and none\n"
          "follows one that ends there. Returns at most `max_runs` (1 to 64). ValueError for an index or number out\n"
          "of range.");
}
