#include "feedline/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <type_traits>

#include "feedline/order.h"

namespace feedline {

namespace {

constexpr std::size_t kLanes = 8;  // independent sums, which a processor adds at the same time
constexpr std::uint64_t kRows = 0x9e3779b97f4a7c15;

template <class T>
bool is_number(T value) {
    if constexpr (std::is_floating_point_v<T>) return value == value;
    return true;
}

}  // namespace

namespace {

// Sum, least and greatest of numbers in a row, in lanes. NaN makes the sum NaN.
template <class T>
struct Lanes {
    double sums[kLanes] = {};
    T low[kLanes], high[kLanes];

    explicit Lanes(T first) {
        std::fill_n(low, kLanes, first);
        std::fill_n(high, kLanes, first);
    }
    void add(const T* rows, std::size_t lanes) {
        for (std::size_t lane = 0; lane < lanes; ++lane) {
            const T value = rows[lane];
            sums[lane] += static_cast<double>(value);
            low[lane] = value < low[lane] ? value : low[lane];
            high[lane] = value > high[lane] ? value : high[lane];
        }
    }
    double sum() const { return std::accumulate(sums, sums + kLanes, 0.0); }
};

double squares_of(const double* lanes) { return std::accumulate(lanes, lanes + kLanes, 0.0); }

// The moments of numbers that are all there. Returns false if one is NaN.
template <class T>
bool plain_moments(const T* rows, std::size_t count, Moments& result, T& low, T& high) {
    Lanes<T> lanes(rows[0]);
    const std::size_t even = count - count % kLanes;
    for (std::size_t i = 0; i < even; i += kLanes) lanes.add(rows + i, kLanes);
    lanes.add(rows + even, count - even);
    const double sum = lanes.sum();
    if (!is_number(sum)) return false;
    const double mean = sum / static_cast<double>(count);
    double squares[kLanes] = {};
    for (std::size_t i = 0; i < even; i += kLanes) {
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            const double difference = static_cast<double>(rows[i + lane]) - mean;
            squares[lane] += difference * difference;
        }
    }
    for (std::size_t i = even; i < count; ++i) {
        const double difference = static_cast<double>(rows[i]) - mean;
        squares[i - even] += difference * difference;
    }
    low = *std::min_element(lanes.low, lanes.low + kLanes);
    high = *std::max_element(lanes.high, lanes.high + kLanes);
    result = {static_cast<std::int64_t>(count), 0, mean, squares_of(squares)};
    return true;
}

}  // namespace

template <class T>
Moments moments(const T* rows, const std::uint8_t* present, std::size_t count, std::size_t width, std::size_t column,
                T& low, T& high) {
    Moments result;
    if (present == nullptr && width == 1 && count > 0 && plain_moments(rows, count, result, low, high)) return result;
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
        if (present != nullptr && present[i] == 0) continue;
        const T value = rows[i * width + column];
        if (!is_number(value)) {
            ++result.nan;
            continue;
        }
        if (result.count == 0) low = high = value;
        ++result.count;
        sum += static_cast<double>(value);
        low = value < low ? value : low;
        high = value > high ? value : high;
    }
    if (result.count == 0) return result;
    result.mean = sum / static_cast<double>(result.count);
    for (std::size_t i = 0; i < count; ++i) {
        const T value = rows[i * width + column];
        if ((present != nullptr && present[i] == 0) || !is_number(value)) continue;
        const double difference = static_cast<double>(value) - result.mean;
        result.squares += difference * difference;
    }
    return result;
}

#define FEEDLINE_MOMENTS(T) \
    template Moments moments<T>(const T*, const std::uint8_t*, std::size_t, std::size_t, std::size_t, T&, T&);
FEEDLINE_MOMENTS(float)
FEEDLINE_MOMENTS(double)
FEEDLINE_MOMENTS(std::int8_t)
FEEDLINE_MOMENTS(std::int16_t)
FEEDLINE_MOMENTS(std::int32_t)
FEEDLINE_MOMENTS(std::int64_t)
FEEDLINE_MOMENTS(std::uint8_t)
FEEDLINE_MOMENTS(std::uint16_t)
FEEDLINE_MOMENTS(std::uint32_t)
FEEDLINE_MOMENTS(std::uint64_t)
#undef FEEDLINE_MOMENTS

void sample_rows(std::uint64_t first, std::size_t count, std::uint64_t threshold, std::vector<std::int64_t>& rows,
                 std::vector<std::uint64_t>& hashes) {
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t hash = mix64(first + i + kRows);
        if (hash < threshold) {
            rows.push_back(static_cast<std::int64_t>(i));
            hashes.push_back(hash);
        }
    }
}

// Up to 7 bytes as the low ones of a word: a copy of variable size is a call.
static std::uint64_t last_word(const char* data, std::size_t size) {
    if (size >= 4) {
        std::uint32_t first, last;  // which overlap
        std::memcpy(&first, data, 4);
        std::memcpy(&last, data + size - 4, 4);
        return first | (static_cast<std::uint64_t>(last) << (8 * (size - 4)));
    }
    std::uint64_t word = 0;
    for (std::size_t i = 0; i < size; ++i) word |= static_cast<std::uint64_t>(static_cast<unsigned char>(data[i])) << (8 * i);
    return word;
}

std::uint64_t hash_bytes(const char* data, std::size_t size) {
    std::uint64_t hash = mix64(size + kRows);
    for (; size >= 8; data += 8, size -= 8) {
        std::uint64_t word;
        std::memcpy(&word, data, 8);
        hash = mix64(hash ^ word);
    }
    return size > 0 ? mix64(hash ^ last_word(data, size)) : hash;
}

ValueTable::ValueTable(bool bytes, std::size_t capacity)
    : bytes_(bytes), capacity_(capacity), slots_(1024), ends_{0}, registers_(std::size_t{1} << kRegisterBits) {}

template <class Equal>
std::size_t ValueTable::slot(std::uint64_t hash, Equal equal) const {
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
        const std::uint32_t number = slots_[at];
        if (number == 0 || (hashes_[number - 1] == hash && equal(number - 1))) return at;
    }
}

void ValueTable::insert(std::size_t at, std::uint64_t hash, std::int64_t count) {
    hashes_.push_back(hash);
    counts_.push_back(count);
    slots_[at] = static_cast<std::uint32_t>(hashes_.size());
    std::uint8_t& longest = registers_[hash >> (64 - kRegisterBits)];
    const std::uint64_t rest = (hash << kRegisterBits) | (std::uint64_t{1} << (kRegisterBits - 1));
    longest = std::max(longest, static_cast<std::uint8_t>(__builtin_clzll(rest) + 1));
    if (capacity_ > 0 && hashes_.size() >= 2 * capacity_) {
        cut();
    } else if (2 * hashes_.size() > slots_.size()) {
        rebuild(2 * slots_.size());
    }
}

void ValueTable::add(std::int64_t value, std::int64_t count) {
    const std::uint64_t hash = mix64(static_cast<std::uint64_t>(value));  // equal only for equal integers
    const std::size_t at = slot(hash, [](std::size_t) { return true; });
    if (slots_[at] != 0) {
        counts_[slots_[at] - 1] += count;
        return;
    }
    integers_.push_back(value);
    insert(at, hash, count);
}

void ValueTable::add(std::string_view value, std::int64_t count) {
    const std::uint64_t hash = hash_bytes(value.data(), value.size());
    const std::size_t at = slot(hash, [&](std::size_t number) { return text(number) == value; });
    if (slots_[at] != 0) {
        counts_[slots_[at] - 1] += count;
        return;
    }
    arena_.append(value);
    ends_.push_back(arena_.size());
    insert(at, hash, count);
}

std::int64_t ValueTable::find(std::int64_t value) const {
    const std::uint64_t hash = mix64(static_cast<std::uint64_t>(value));
    return static_cast<std::int64_t>(slots_[slot(hash, [](std::size_t) { return true; })]) - 1;
}

std::int64_t ValueTable::find(std::string_view value) const {
    const std::uint64_t hash = hash_bytes(value.data(), value.size());
    return static_cast<std::int64_t>(slots_[slot(hash, [&](std::size_t number) { return text(number) == value; })]) - 1;
}

void ValueTable::merge(const ValueTable& other) {
    for (std::size_t i = 0; i < other.size(); ++i) {
        if (bytes_) {
            add(other.text(i), other.counts_[i]);
        } else {
            add(other.integers_[i], other.counts_[i]);
        }
    }
    for (std::size_t i = 0; i < registers_.size(); ++i) registers_[i] = std::max(registers_[i], other.registers_[i]);
    error_ += other.error_;
}

std::vector<std::uint32_t> ValueTable::ranking() const {
    std::vector<std::uint32_t> numbers(size());
    std::iota(numbers.begin(), numbers.end(), 0U);
    std::sort(numbers.begin(), numbers.end(), [this](std::uint32_t a, std::uint32_t b) {
        if (counts_[a] != counts_[b]) return counts_[a] > counts_[b];
        return bytes_ ? text(a) < text(b) : integers_[a] < integers_[b];
    });
    return numbers;
}

void ValueTable::set_registers(const std::uint8_t* data) { std::copy_n(data, registers_.size(), registers_.begin()); }

void ValueTable::rebuild(std::size_t slots) {
    slots_.assign(slots, 0);
    for (std::size_t i = 0; i < hashes_.size(); ++i)
        slots_[slot(hashes_[i], [](std::size_t) { return false; })] = static_cast<std::uint32_t>(i + 1);
}

// Subtracts from all counts what leaves at most `capacity_` values with a count, as Misra and Gries do.
void ValueTable::cut() {
    std::vector<std::int64_t> counts = counts_;
    std::nth_element(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(capacity_), counts.end(),
                     std::greater<>());
    const std::int64_t least = counts[capacity_];
    error_ += least;
    std::string arena;
    std::vector<std::size_t> ends{0};
    std::size_t kept = 0;
    for (std::size_t i = 0; i < hashes_.size(); ++i) {
        if (counts_[i] <= least) continue;
        hashes_[kept] = hashes_[i];
        counts_[kept] = counts_[i] - least;
        if (bytes_) {
            arena.append(text(i));
            ends.push_back(arena.size());
        } else {
            integers_[kept] = integers_[i];
        }
        ++kept;
    }
    hashes_.resize(kept);
    counts_.resize(kept);
    if (bytes_) {
        arena_ = std::move(arena);
        ends_ = std::move(ends);
    } else {
        integers_.resize(kept);
    }
    rebuild(slots_.size());
}

}  // namespace feedline
