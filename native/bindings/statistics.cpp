#include "feedline/statistics.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstring>
#include <numeric>

#include "arrays.h"
#include "feedline/order.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace feedline;
using namespace feedline::bindings;
using namespace nb::literals;

namespace {

using Numbers = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Values = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Integers = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

const std::uint8_t* checked(const nb::object& present, std::size_t count, Bytes& bytes) {
    if (present.is_none()) return nullptr;
    bytes = nb::cast<Bytes>(present);
    if (bytes.size() != count)
        raise<nb::value_error>({"expected a byte of `present` for each of ", count, " rows, got ", bytes.size()});
    return bytes.data();
}

template <class T, class Compute>
nb::tuple summary(const Compute& compute) {
    T low{}, high{};
    Moments result;
    {
        const Unlocked unlocked;
        result = compute(low, high);
    }
    return nb::make_tuple(result.count, result.nan, result.mean, result.squares, low, high);
}

template <class T>
nb::tuple column_summary(const Numbers& rows, const std::uint8_t* present, std::size_t column) {
    return summary<T>([&](T& low, T& high) {
        return moments(static_cast<const T*>(rows.data()), present, rows.shape(0), rows.shape(1), column, low, high);
    });
}

nb::tuple py_length_moments(const Integers& bounds, const nb::object& present) {
    if (bounds.size() == 0) throw nb::value_error("expected at least one bound, got none");
    Bytes bytes;
    const std::uint8_t* mask = checked(present, bounds.size() - 1, bytes);
    return summary<std::int64_t>([&](std::int64_t& low, std::int64_t& high) {
        return length_moments(bounds.data(), mask, bounds.size() - 1, low, high);
    });
}

nb::tuple py_moments(const Numbers& rows, std::size_t column, const nb::object& present) {
    Bytes bytes;
    const std::uint8_t* mask = checked(present, rows.shape(0), bytes);
    if (column >= rows.shape(1))
        raise<nb::value_error>({"expected a column below ", rows.shape(1), ", got ", column});
    const nb::dlpack::dtype kind = rows.dtype();
    if (kind == nb::dtype<float>()) return column_summary<float>(rows, mask, column);
    if (kind == nb::dtype<double>()) return column_summary<double>(rows, mask, column);
    if (kind == nb::dtype<std::int8_t>()) return column_summary<std::int8_t>(rows, mask, column);
    if (kind == nb::dtype<std::int16_t>()) return column_summary<std::int16_t>(rows, mask, column);
    if (kind == nb::dtype<std::int32_t>()) return column_summary<std::int32_t>(rows, mask, column);
    if (kind == nb::dtype<std::int64_t>()) return column_summary<std::int64_t>(rows, mask, column);
    if (kind == nb::dtype<std::uint8_t>()) return column_summary<std::uint8_t>(rows, mask, column);
    if (kind == nb::dtype<std::uint16_t>()) return column_summary<std::uint16_t>(rows, mask, column);
    if (kind == nb::dtype<std::uint32_t>()) return column_summary<std::uint32_t>(rows, mask, column);
    if (kind == nb::dtype<std::uint64_t>()) return column_summary<std::uint64_t>(rows, mask, column);
    throw nb::type_error("expected integers, float32 or float64");
}

template <class T>
nb::object array_of(const std::vector<T>& numbers, nb::handle dtype) {
    nb::object array = new_array(numbers.size(), dtype);
    if (!numbers.empty()) std::memcpy(memory(array), numbers.data(), numbers.size() * sizeof(T));
    return array;
}

nb::tuple py_sample_rows(std::uint64_t first, std::size_t count, std::uint64_t threshold) {
    std::vector<std::int64_t> rows;
    std::vector<std::uint64_t> hashes;
    {
        const Unlocked unlocked;
        sample_rows(first, count, threshold, rows, hashes);
    }
    return nb::make_tuple(array_of(rows, numpy().int64), array_of(hashes, numpy().uint64));
}

// The byte strings of a buffer, checked.
class Texts {
public:
    Texts(const Integers& bounds, const Bytes& data) : bounds_(bounds), data_(data) {
        if (bounds.size() == 0) throw nb::value_error("expected at least one bound, got none");
        if (!ascend(bounds.data(), bounds.size(), data.size())) raise<nb::value_error>({"expected ascending bounds from 0 to ", data.size()});
    }
    std::size_t size() const { return bounds_.size() - 1; }
    std::string_view operator[](std::size_t i) const {
        const std::int64_t begin = bounds_.data()[i];
        return {reinterpret_cast<const char*>(data_.data()) + begin,
                static_cast<std::size_t>(bounds_.data()[i + 1] - begin)};
    }

private:
    const Integers& bounds_;
    const Bytes& data_;
};

void check_kind(const ValueTable& table, bool bytes) {
    if (table.holds_bytes() != bytes)
        throw nb::type_error(bytes ? "expected integers for this table, got byte strings"
                                   : "expected byte strings for this table, got integers");
}

const std::int64_t* checked_counts(const nb::object& counts, std::size_t size, Integers& numbers) {
    if (counts.is_none()) return nullptr;
    numbers = nb::cast<Integers>(counts);
    if (numbers.size() != size) raise<nb::value_error>({"expected ", size, " counts, got ", numbers.size()});
    return numbers.data();
}

template <class T>
bool add_numbers(ValueTable& table, const Values& values, const std::uint8_t* mask, const std::int64_t* counts) {
    if (values.dtype() != nb::dtype<T>()) return false;
    const Unlocked unlocked;
    table.add(static_cast<const T*>(values.data()), mask, counts, values.size());
    return true;
}

void add_integers(ValueTable& table, const Values& values, const nb::object& present, const nb::object& counts) {
    check_kind(table, false);
    Bytes bytes;
    Integers numbers;
    const std::uint8_t* mask = checked(present, values.size(), bytes);
    const std::int64_t* count = checked_counts(counts, values.size(), numbers);
    if (!(add_numbers<std::int8_t>(table, values, mask, count) || add_numbers<std::int16_t>(table, values, mask, count) ||
          add_numbers<std::int32_t>(table, values, mask, count) || add_numbers<std::int64_t>(table, values, mask, count) ||
          add_numbers<std::uint8_t>(table, values, mask, count) || add_numbers<std::uint16_t>(table, values, mask, count) ||
          add_numbers<std::uint32_t>(table, values, mask, count) || add_numbers<std::uint64_t>(table, values, mask, count)))
        throw nb::type_error("expected integers");
}

void add_texts(ValueTable& table, const Integers& bounds, const Bytes& data, const nb::object& present,
               const nb::object& counts) {
    check_kind(table, true);
    const Texts texts(bounds, data);
    Bytes bytes;
    Integers numbers;
    const std::uint8_t* mask = checked(present, texts.size(), bytes);
    const std::int64_t* count = checked_counts(counts, texts.size(), numbers);
    const Unlocked unlocked;
    table.add(bounds.data(), reinterpret_cast<const char*>(data.data()), data.size(), mask, count, texts.size());
}

template <class Sought>
nb::object find_all(const ValueTable& table, const Sought& values, std::size_t size) {
    nb::object found = new_array(size, numpy().int64);
    auto* numbers = data_of<std::int64_t>(found);
    const Unlocked unlocked;
    for (std::size_t i = 0; i < size; ++i) numbers[i] = table.find(values[i]);
    return found;
}

nb::tuple listed(const ValueTable& table, const std::vector<std::uint32_t>& order) {
    nb::list values;
    nb::object counts = new_array(order.size(), numpy().int64);
    auto* count = data_of<std::int64_t>(counts);
    for (std::size_t i = 0; i < order.size(); ++i) {
        count[i] = table.count(order[i]);
        if (table.holds_bytes()) {
            const std::string_view text = table.text(order[i]);
            values.append(nb::bytes(text.data(), text.size()));
        } else {
            values.append(table.integer(order[i]));
        }
    }
    return nb::make_tuple(values, counts);
}

template <class Hash>
nb::object hashes_of(std::size_t size, const Hash& hash) {
    nb::object hashes = new_array(size, numpy().uint64);
    auto* out = data_of<std::uint64_t>(hashes);
    const Unlocked unlocked;
    for (std::size_t i = 0; i < size; ++i) out[i] = hash(i);
    return hashes;
}

}  // namespace

void bind_statistics(nb::module_& m) {
    m.def("moments", &py_moments, "rows"_a, "column"_a, "present"_a.none(),
          "Return count, number of NaN, mean, sum of squared differences from it, least and greatest number of a\n"
          "column of `rows` (n, width), integers, float32 or float64. `present`: uint8[n], 0 for rows to leave out.");
    m.def("length_moments", &py_length_moments, "bounds"_a, "present"_a.none(),
          "Return the same of the differences of neighbouring `bounds`, int64[n + 1].");
    m.def("sample_rows", &py_sample_rows, "first"_a, "count"_a, "threshold"_a,
          "Return index (int64) and hash (uint64) of the rows of a range, numbered from `first`, whose hash is below\n"
          "`threshold`.");
    m.def(
        "hash_integers",
        [](const Integers& values, std::uint64_t key) {
            return hashes_of(values.size(), [&](std::size_t i) {
                return mix64(static_cast<std::uint64_t>(values.data()[i]) ^ key);
            });
        },
        "values"_a, "key"_a, "Return a hash of each integer, uint64, which never changes.");
    m.def(
        "hash_texts",
        [](const Integers& bounds, const Bytes& data, std::uint64_t key) {
            const Texts texts(bounds, data);
            return hashes_of(texts.size(), [&](std::size_t i) {
                return mix64(hash_bytes(texts[i].data(), texts[i].size()) ^ key);
            });
        },
        "bounds"_a, "data"_a, "key"_a, "Return a hash of each byte string, uint64, which never changes.");
    nb::class_<ValueTable>(m, "ValueTable", "Distinct integers or byte strings, each with a count.")
        .def(nb::init<bool, std::size_t>(), "bytes"_a, "capacity"_a)
        .def("__len__", &ValueTable::size)
        .def_prop_rw("error", &ValueTable::error, &ValueTable::set_error,
                     "How much too small a count may be: of values beyond the capacity.")
        .def_prop_rw(
            "registers",
            [](const ValueTable& table) {
                return nb::bytes(reinterpret_cast<const char*>(table.registers().data()), table.registers().size());
            },
            [](ValueTable& table, const nb::bytes& data) {
                if (data.size() != table.registers().size())
                    raise<nb::value_error>({"expected ", table.registers().size(), " bytes, got ", data.size()});
                table.set_registers(reinterpret_cast<const std::uint8_t*>(data.c_str()));
            },
            "Longest runs of zeros in the hashes of all values ever added, by their leading bits.")
        .def("add_integers", &add_integers, "values"_a, "present"_a.none(), "counts"_a.none() = nb::none(),
             "Count integers of any dtype; uint64 is kept as int64 of the same bits.")
        .def("add_texts", &add_texts, "bounds"_a, "data"_a, "present"_a.none(), "counts"_a.none() = nb::none(),
             "Count byte strings.")
        .def(
            "find_integers",
            [](const ValueTable& table, const Integers& values) {
                check_kind(table, false);
                return find_all(table, values.data(), values.size());
            },
            "values"_a, "Return the number of each integer in the order of addition, int64, -1 for others.")
        .def(
            "find_texts",
            [](const ValueTable& table, const Integers& bounds, const Bytes& data) {
                check_kind(table, true);
                const Texts texts(bounds, data);
                return find_all(table, texts, texts.size());
            },
            "bounds"_a, "data"_a, "Return the number of each byte string in the order of addition, int64, -1 for others.")
        .def(
            "merge",
            [](ValueTable& table, const ValueTable& other) {
                check_kind(table, other.holds_bytes());
                const Unlocked unlocked;
                table.merge(other);
            },
            "other"_a, "Add the values and counts of another table.")
        .def(
            "entries",
            [](const ValueTable& table) {
                std::vector<std::uint32_t> order(table.size());
                std::iota(order.begin(), order.end(), 0U);
                return listed(table, order);
            },
            "Return the values and their counts, int64, in the order of addition.")
        .def(
            "items", [](const ValueTable& table) { return listed(table, table.ranking()); }, "Return the values and their counts, int64, by falling count, equal ones by value.");
}
