// Statistics of columns: for any numbers, masks and texts the results are those of slow twins, and nothing outside the
// arrays is read. Meant for ASan + UBSan (`make sanitize`).
//
//   test_statistics [seconds = 1] [seed = 1]
#include "feedline/statistics.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "check.h"

using namespace feedline;

namespace {

using Random = std::mt19937_64;

// A copy in memory of exactly its size, so that a read beyond it is detected.
template <class T>
std::unique_ptr<T[]> exact(const std::vector<T>& values) {
    std::unique_ptr<T[]> copy(new T[values.size()]);
    std::copy(values.begin(), values.end(), copy.get());
    return copy;
}

// Numbers of all kinds: neighbours, few, any, and the limits of the type.
template <class T>
std::vector<T> numbers(Random& random, std::size_t n) {
    using Limits = std::numeric_limits<T>;
    const auto kind = random() % 4;
    const T base = static_cast<T>(random());
    std::vector<T> out(n);
    for (T& value : out) {
        if constexpr (std::is_floating_point_v<T>) {
            const T special[] = {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity(), Limits::max(), T{0}};
            value = static_cast<T>(static_cast<double>(random() % 2000) - 1000) / 8;
            if (kind == 1) value = special[random() % 5];
            if (kind == 2 && random() % 9 == 0) value = special[0];
        } else {
            value = static_cast<T>(random());
            if (kind == 1) value = random() % 2 ? Limits::max() : Limits::min();
            if (kind >= 2) value = static_cast<T>(static_cast<std::uint64_t>(base) + random() % (kind == 2 ? 3 : 9000));
            if (kind == 2 && random() % 50 == 0) value = static_cast<T>(random());
        }
    }
    return out;
}

std::vector<std::uint8_t> mask(Random& random, std::size_t n) {
    std::vector<std::uint8_t> present(n);
    const auto kind = random() % 4;
    for (std::uint8_t& byte : present) byte = static_cast<std::uint8_t>(kind < 2 ? 255 * kind : random() % kind);
    return present;
}

bool is_close(double got, long double expected, long double scale) {
    if (std::isnan(expected)) return std::isnan(got);
    if (std::isinf(static_cast<double>(expected))) return got == static_cast<double>(expected) || std::isnan(got);
    return std::fabs(static_cast<long double>(got) - expected) <= 1e-9L * scale + 1e-300L;
}

// Moments of lengths are those of the differences as numbers.
void test_lengths(const std::int64_t* bounds, const std::uint8_t* present, std::size_t n) {
    if (n == 0) return;
    std::vector<std::int64_t> lengths(n - 1);
    for (std::size_t i = 0; i + 1 < n; ++i)
        lengths[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(bounds[i + 1]) - static_cast<std::uint64_t>(bounds[i]));
    std::int64_t low = 0, high = 0, least = 0, greatest = 0;
    const Moments got = length_moments(bounds, present, n - 1, low, high);
    const Moments expected = moments(lengths.data(), present, n - 1, 1, 0, least, greatest);
    CHECK(got.count == expected.count && low == least && high == greatest);
    CHECK(got.mean == expected.mean && got.squares == expected.squares);
}

template <class T>
void test_moments(Random& random) {
    const std::size_t width = random() % 3 ? 1 : 1 + random() % 3, column = random() % width;
    const std::size_t n = random() % 8 ? random() % 200 : random() % 10000;  // of several blocks
    const std::vector<T> rows = numbers<T>(random, n * width);
    const std::vector<std::uint8_t> present = mask(random, n);
    const auto data = exact(rows);
    const auto flags = exact(present);
    const bool masked = random() % 2 == 0;
    T low{}, high{};
    const Moments got = moments(data.get(), masked ? flags.get() : nullptr, n, width, column, low, high);
    std::vector<T> kept;
    std::int64_t nan = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const T value = rows[i * width + column];
        if (masked && present[i] == 0) continue;
        if (value == value) {
            kept.push_back(value);
        } else {
            ++nan;
        }
    }
    CHECK(got.count == static_cast<std::int64_t>(kept.size()) && got.nan == nan);
    if constexpr (std::is_same_v<T, std::int64_t>) test_lengths(data.get(), masked ? flags.get() : nullptr, n);
    if (kept.empty()) return;
    CHECK(low == *std::min_element(kept.begin(), kept.end()) && high == *std::max_element(kept.begin(), kept.end()));
    long double sum = 0, squares = 0, largest = 0;
    for (const T value : kept) {
        sum += static_cast<long double>(value);
        largest = std::max(largest, std::fabs(static_cast<long double>(value)));
    }
    if (std::is_same_v<T, double> && largest > 1e150L) return;  // sums and squares are beyond a double
    const long double mean = sum / static_cast<long double>(kept.size());
    for (const T value : kept) squares += (static_cast<long double>(value) - mean) * (static_cast<long double>(value) - mean);
    CHECK(is_close(got.mean, mean, largest));
    CHECK(is_close(got.squares, squares, largest * largest * static_cast<long double>(kept.size())));
}

template <class Value>
std::int64_t total(const std::map<Value, std::int64_t>& counts) {
    std::int64_t sum = 0;
    for (const auto& entry : counts) sum += entry.second;
    return sum;
}

template <class Value>
Value value_of(const ValueTable& table, std::size_t number) {
    if constexpr (std::is_same_v<Value, std::string>) {
        return Value(table.text(number));
    } else {
        return table.integer(number);
    }
}

// A table has each value at most once, ordered as promised, with a count that is too small by its error at most.
template <class Value>
void check(const ValueTable& table, const std::map<Value, std::int64_t>& expected, std::size_t capacity) {
    if (capacity == 0) CHECK(table.size() == expected.size() && table.error() == 0);
    if (capacity > 0) {
        CHECK(table.size() < 2 * capacity);
        CHECK(table.error() * static_cast<std::int64_t>(capacity) <= total(expected));
    }
    std::map<Value, std::int64_t> counts;
    for (std::size_t i = 0; i < table.size(); ++i) {
        const Value value = value_of<Value>(table, i);
        CHECK(counts.emplace(value, table.count(i)).second);
        CHECK(table.find(value) == static_cast<std::int64_t>(i));
    }
    for (const auto& [value, exact_count] : expected) {
        const auto found = counts.find(value);
        const std::int64_t count = found == counts.end() ? 0 : found->second;
        CHECK(count <= exact_count && exact_count <= count + table.error());
        if (found == counts.end()) CHECK(table.find(value) == -1);
    }
    for (const auto& entry : counts) CHECK(expected.count(entry.first) == 1);
    const std::vector<std::uint32_t> order = table.ranking();
    CHECK(order.size() == table.size());
    for (std::size_t i = 1; i < order.size(); ++i) {
        const std::int64_t before = table.count(order[i - 1]), after = table.count(order[i]);
        CHECK(before > after || (before == after && value_of<Value>(table, order[i - 1]) < value_of<Value>(table, order[i])));
    }
}

std::size_t capacity_of(Random& random) { return random() % 2 ? 0 : 1 + random() % 40; }

template <class T>
void test_integers(Random& random) {
    const std::size_t capacity = capacity_of(random);
    ValueTable table(false, capacity), whole(false, capacity);
    std::map<std::int64_t, std::int64_t> expected;
    std::vector<std::int64_t> first;  // in the order of their addition
    const bool ordered = random() % 4 == 0;
    for (std::size_t parts = random() % 4; parts > 0; --parts) {
        const std::size_t n = random() % 3 ? random() % 60 : random() % 20000;
        const std::vector<T> values = numbers<T>(random, n);
        const std::vector<std::uint8_t> present = mask(random, n);
        std::vector<std::int64_t> counts(n);
        for (std::int64_t& count : counts) count = 1 + static_cast<std::int64_t>(random() % 5);
        const bool masked = random() % 2 == 0, counted = ordered || random() % 4 == 0;
        ValueTable part(false, capacity);
        part.add(exact(values).get(), masked ? exact(present).get() : nullptr, counted ? exact(counts).get() : nullptr, n);
        for (std::size_t i = 0; i < n; ++i) {
            if (masked && present[i] == 0) continue;
            const auto value = static_cast<std::int64_t>(values[i]);
            if (expected.emplace(value, 0).second) first.push_back(value);
            expected[value] += counted ? counts[i] : 1;
        }
        whole.merge(part);
        table.add(values.data(), masked ? present.data() : nullptr, counted ? counts.data() : nullptr, n);
    }
    check(table, expected, capacity);
    check(whole, expected, capacity);
    CHECK(table.registers() == whole.registers());
    if (capacity == 0 && ordered)
        for (std::size_t i = 0; i < first.size(); ++i) CHECK(table.integer(i) == first[i] && whole.integer(i) == first[i]);
}

void test_texts(Random& random) {
    const std::size_t capacity = capacity_of(random);
    ValueTable table(true, capacity), whole(true, capacity);
    std::map<std::string, std::int64_t> expected;
    for (std::size_t parts = random() % 4; parts > 0; --parts) {
        const std::size_t n = random() % 200, longest = 1 + random() % 30, letters = 1 + random() % 3;
        std::vector<char> data(random() % 9, 'x');
        std::vector<std::int64_t> bounds{static_cast<std::int64_t>(data.size())};
        for (std::size_t i = 0; i < n; ++i) {
            for (std::size_t k = random() % longest; k > 0; --k) data.push_back(static_cast<char>(random() % letters));
            bounds.push_back(static_cast<std::int64_t>(data.size()));
        }
        const std::vector<std::uint8_t> present = mask(random, n);
        const bool masked = random() % 2 == 0;
        const auto bytes = exact(data);
        ValueTable part(true, capacity);
        part.add(bounds.data(), bytes.get(), data.size(), masked ? present.data() : nullptr, nullptr, n);
        whole.merge(part);
        for (std::size_t i = 0; i < n; ++i) {
            if (masked && present[i] == 0) continue;
            const auto begin = static_cast<std::size_t>(bounds[i]), end = static_cast<std::size_t>(bounds[i + 1]);
            const std::string text(data.begin() + static_cast<std::ptrdiff_t>(begin), data.begin() + static_cast<std::ptrdiff_t>(end));
            ++expected[text];
            table.add(text, 1);  // as they are one by one
            const auto alone = exact(std::vector<char>(text.begin(), text.end()));
            CHECK(hash_bytes(alone.get(), text.size()) == hash_bytes(bytes.get() + begin, end - begin));
        }
    }
    check(table, expected, capacity);
    check(whole, expected, capacity);
    CHECK(table.registers() == whole.registers());
}

void test_samples(Random& random) {
    const std::uint64_t first = random(), threshold = random() % 3 ? random() : 0;
    const std::size_t n = random() % 300, cut = random() % (n + 1);
    std::vector<std::int64_t> rows, front_rows, back_rows;
    std::vector<std::uint64_t> hashes, front, back;
    sample_rows(first, n, threshold, rows, hashes);
    sample_rows(first, cut, threshold, front_rows, front);
    sample_rows(first + cut, n - cut, threshold, back_rows, back);
    for (const std::int64_t row : back_rows) front_rows.push_back(row + static_cast<std::int64_t>(cut));
    front.insert(front.end(), back.begin(), back.end());
    CHECK(rows == front_rows && hashes == front && rows.size() == hashes.size());
    for (const std::uint64_t hash : hashes) CHECK(hash < threshold);
    for (const std::int64_t row : rows) CHECK(0 <= row && row < static_cast<std::int64_t>(n));
}

template <class T>
void test_numbers(Random& random) {
    test_moments<T>(random);
    if constexpr (std::is_integral_v<T>) test_integers<T>(random);
}

}  // namespace

int main(int argc, char** argv) {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
    Random random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(static_cast<int>(seconds * 1000));
    std::uint64_t rounds = 0;
    for (; rounds < 20 || std::chrono::steady_clock::now() < until; ++rounds) {
        test_numbers<float>(random);
        test_numbers<double>(random);
        test_numbers<std::int8_t>(random);
        test_numbers<std::int16_t>(random);
        test_numbers<std::int32_t>(random);
        test_numbers<std::int64_t>(random);
        test_numbers<std::uint8_t>(random);
        test_numbers<std::uint16_t>(random);
        test_numbers<std::uint32_t>(random);
        test_numbers<std::uint64_t>(random);
        test_texts(random);
        test_samples(random);
    }
    std::printf("%llu rounds\nstatistics: ok\n", static_cast<unsigned long long>(rounds));
    return 0;
}
