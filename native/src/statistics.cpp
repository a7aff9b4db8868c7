#include "feedline/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <type_traits>

#include "feedline/order.h"

namespace feedline {

namespace {

constexpr std::size_t kLanes = 4;  // independent sums, which a processor adds at the same time
constexpr std::uint64_t kRows = 0x9e3779b97f4a7c15;
constexpr std::size_t kDense = 1 << 13;  // integers side by side that are counted in arrays
constexpr std::size_t kLook = 1 << 12;  // values of a block, which stay in the fastest cache
constexpr std::size_t kBlock = 32;  // values whose places in a table are fetched together

template <class T>
bool is_number(T value) {
    if constexpr (std::is_floating_point_v<T>) return value == value;
    return true;
}

// Sums of differences from a number, sums of their squares, least and greatest, in lanes.
template <class T>
struct Lanes {
    double from, sums[kLanes] = {}, squares[kLanes] = {};
    T low[kLanes], high[kLanes];

    explicit Lanes(T first) : from(static_cast<double>(first)) {
        std::fill_n(low, kLanes, first);
        std::fill_n(high, kLanes, first);
    }
    void add(const T* rows, std::size_t lanes) {
        for (std::size_t lane = 0; lane < lanes; ++lane) {
            const T value = rows[lane];
            const double difference = static_cast<double>(value) - from;
            sums[lane] += difference;
            squares[lane] += difference * difference;
            low[lane] = value < low[lane] ? value : low[lane];
            high[lane] = value > high[lane] ? value : high[lane];
        }
    }
};

double sum_of(const double* lanes) { return std::accumulate(lanes, lanes + kLanes, 0.0); }

// The moments of a block of at least one number. They are wrong if one is NaN: then the mean is NaN. Differences from a
// number of the block lose at most the digits of `count`: the sum of their squares is at most so many times the result.
template <class T>
Moments block_moments(const T* rows, std::size_t count, T& low, T& high) {
    Lanes<T> lanes(rows[0]);
    const std::size_t even = count - count % kLanes;
    for (std::size_t i = 0; i < even; i += kLanes) lanes.add(rows + i, kLanes);
    lanes.add(rows + even, count - even);
    low = *std::min_element(lanes.low, lanes.low + kLanes);
    high = *std::max_element(lanes.high, lanes.high + kLanes);
    const double sum = sum_of(lanes.sums), size = static_cast<double>(count);
    Moments block{static_cast<std::int64_t>(count), 0, lanes.from + sum / size, 0};
    block.squares = std::max(sum_of(lanes.squares) - sum * (sum / size), 0.0);
    if (!std::isfinite(block.mean)) block.mean = std::accumulate(rows, rows + count, 0.0) / size;  // of infinite ones
    return block;
}

// Processors add numbers of 4 bytes faster than shorter ones.
template <class T>
using Wide = std::conditional_t<std::is_integral_v<T> && sizeof(T) < 4, std::int32_t, T>;

// Adds the moments and limits of a block of at least one number.
template <class T>
void add_block(Moments& total, T& low, T& high, const Moments& block, T least, T greatest) {
    if (total.count == 0) {
        total.mean = block.mean, total.squares = block.squares, low = least, high = greatest;
    } else {
        const double share = static_cast<double>(block.count) / static_cast<double>(total.count + block.count);
        const double difference = block.mean - total.mean;
        total.squares += block.squares + difference * difference * share * static_cast<double>(total.count);
        const bool finite = std::isfinite(total.mean) && std::isfinite(block.mean);
        total.mean = finite ? total.mean + difference * share : total.mean + block.mean;
        low = std::min(low, least), high = std::max(high, greatest);
    }
    total.count += block.count;
}

// The moments of `count` numbers, `at(i)` each, of which those of a block stay in the fastest cache. They lie in a row
// from `rows` on; null: they do not.
template <class T, class At>
Moments moments_of(const Wide<T>* rows, At at, const std::uint8_t* present, std::size_t count, T& low, T& high) {
    Moments total;
    Wide<T> least{}, greatest{}, block_least{}, block_greatest{}, kept[kLook];
    for (std::size_t begin = 0; begin < count; begin += kLook) {
        const std::size_t end = std::min(begin + kLook, count);
        if (rows != nullptr && present == nullptr) {
            const Moments block = block_moments(rows + begin, end - begin, block_least, block_greatest);
            if (is_number(block.mean)) {
                add_block(total, least, greatest, block, block_least, block_greatest);
                continue;
            }
        }
        std::size_t there = 0;
        std::int64_t nan = 0;
        for (std::size_t i = begin; i < end; ++i) {
            const T value = at(i);
            kept[there] = value;
            const bool counts = present == nullptr || present[i] != 0, number = is_number(value);
            there += counts && number;
            nan += counts && !number;
        }
        total.nan += nan;
        if (there == 0) continue;
        const Moments block = block_moments(kept, there, block_least, block_greatest);
        add_block(total, least, greatest, block, block_least, block_greatest);
    }
    if (total.count > 0) low = static_cast<T>(least), high = static_cast<T>(greatest);
    return total;
}

}  // namespace

template <class T>
Moments moments(const T* rows, const std::uint8_t* present, std::size_t count, std::size_t width, std::size_t column,
                T& low, T& high) {
    const Wide<T>* plain = nullptr;
    if constexpr (std::is_same_v<T, Wide<T>>) plain = width == 1 ? rows : nullptr;
    return moments_of(plain, [&](std::size_t i) { return rows[i * width + column]; }, present, count, low, high);
}

Moments length_moments(const std::int64_t* bounds, const std::uint8_t* present, std::size_t count, std::int64_t& low,
                       std::int64_t& high) {
    const auto length = [&](std::size_t i) {
        return static_cast<std::int64_t>(static_cast<std::uint64_t>(bounds[i + 1]) - static_cast<std::uint64_t>(bounds[i]));
    };
    return moments_of<std::int64_t>(nullptr, length, present, count, low, high);
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

bool ascend(const std::int64_t* bounds, std::size_t count, std::size_t size) {
    if (count == 0 || bounds[0] < 0 || static_cast<std::uint64_t>(bounds[count - 1]) > size) return false;
    bool good = true;
    for (std::size_t i = 1; i < count; ++i) good &= bounds[i - 1] <= bounds[i];
    return good;
}

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

constexpr std::uint64_t kLowBytes[9] = {0,           0xff,           0xffff,           0xffffff,  0xffffffff,
                                        0xffffffffff, 0xffffffffffff, 0xffffffffffffff, ~std::uint64_t{0}};

// The first 8 bytes, or fewer as the low ones of a word. `room` bytes from `data` on may be read.
static std::uint64_t first_word(const char* data, std::size_t size, std::size_t room) {
    if (room < 8) return last_word(data, size);
    std::uint64_t word;
    std::memcpy(&word, data, 8);
    return word & kLowBytes[std::min<std::size_t>(size, 8)];  // lengths vary, and a branch would be guessed wrong
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
    : bytes_(bytes), capacity_(capacity), slots_(std::size_t{1} << 12), ends_{0}, registers_(std::size_t{1} << kRegisterBits) {}

template <class Equal>
std::size_t ValueTable::place(std::uint64_t hash, Equal equal) const {
    const std::size_t mask = slots_.size() - 1;
    const auto tag = static_cast<std::uint32_t>(hash >> 32);
    for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
        const Slot slot = slots_[at];
        if (slot.number == 0 || (slot.tag == tag && equal(slot.number - 1))) return at;
    }
}

void ValueTable::insert(std::size_t at, std::uint64_t hash, std::int64_t count) {
    hashes_.push_back(hash);
    counts_.push_back(count);
    slots_[at] = {static_cast<std::uint32_t>(hashes_.size()), static_cast<std::uint32_t>(hash >> 32)};
    std::uint8_t& longest = registers_[hash >> (64 - kRegisterBits)];
    const std::uint64_t rest = (hash << kRegisterBits) | (std::uint64_t{1} << (kRegisterBits - 1));
    longest = std::max(longest, static_cast<std::uint8_t>(__builtin_clzll(rest) + 1));
    if (capacity_ > 0 && hashes_.size() >= 2 * capacity_) {
        cut();
    } else if (4 * hashes_.size() > slots_.size()) {
        rebuild(4 * slots_.size());
    }
}

void ValueTable::fetch(std::uint64_t hash) const { __builtin_prefetch(&slots_[hash & (slots_.size() - 1)]); }

void ValueTable::add(std::int64_t value, std::int64_t count) {
    add_integer(value, mix64(static_cast<std::uint64_t>(value)), count);
}

// `hash` is that of the value.
void ValueTable::add_integer(std::int64_t value, std::uint64_t hash, std::int64_t count) {
    const std::size_t at = place(hash, [&](std::size_t number) { return integers_[number] == value; });
    if (slots_[at].number != 0) {
        counts_[slots_[at].number - 1] += count;
    } else {
        integers_.push_back(value);
        insert(at, hash, count);
    }
}

// `hash` and `word` are those of the value.
[[gnu::always_inline]] inline void ValueTable::add_text(std::string_view value, std::uint64_t hash, std::uint64_t word, std::int64_t count) {
    const std::size_t at = place(hash, [&](std::size_t number) { return is_text(number, value, word); });
    if (slots_[at].number != 0) {
        counts_[slots_[at].number - 1] += count;
    } else {
        insert_text(at, value, hash, word, count);
    }
}

// Apart, so that what is done for each text stays short.
[[gnu::noinline]] void ValueTable::insert_text(std::size_t at, std::string_view value, std::uint64_t hash, std::uint64_t word,
                                               std::int64_t count) {
    arena_.append(value);
    ends_.push_back(arena_.size());
    words_.push_back(word);
    insert(at, hash, count);
}

bool ValueTable::is_text(std::size_t number, std::string_view value, std::uint64_t word) const {
    if (words_[number] != word || ends_[number + 1] - ends_[number] != value.size()) return false;
    return value.size() <= 8 || std::memcmp(arena_.data() + ends_[number] + 8, value.data() + 8, value.size() - 8) == 0;
}

void ValueTable::add(std::string_view value, std::int64_t count) {
    add_text(value, hash_bytes(value.data(), value.size()), first_word(value.data(), value.size(), value.size()), count);
}

template <class T>
void ValueTable::add(const T* values, const std::uint8_t* present, const std::int64_t* counts, std::size_t n) {
    if (counts == nullptr && add_dense(values, present, n)) return;
    std::uint64_t hashes[kBlock];
    for (std::size_t begin = 0; begin < n; begin += kBlock) {
        const std::size_t end = std::min(begin + kBlock, n);
        for (std::size_t i = begin; i < end; ++i) {
            hashes[i - begin] = mix64(static_cast<std::uint64_t>(static_cast<std::int64_t>(values[i])));
            fetch(hashes[i - begin]);
        }
        for (std::size_t i = begin; i < end; ++i) {
            if (present != nullptr && present[i] == 0) continue;
            add_integer(static_cast<std::int64_t>(values[i]), hashes[i - begin], counts == nullptr ? 1 : counts[i]);
        }
    }
}

// Counts integers near the least of the first ones in arrays, others one by one. Returns false if few are near.
template <class T>
bool ValueTable::add_dense(const T* values, const std::uint8_t* present, std::size_t n) {
    if (n < 2 * kLook) return false;
    const T low = *std::min_element(values, values + kLook);
    const auto distance = [low](T value) { return static_cast<std::uint64_t>(value) - static_cast<std::uint64_t>(low); };
    const auto is_near = [&](T value) { return distance(value) < kDense; };
    if (std::count_if(values, values + kLook, is_near) < static_cast<std::ptrdiff_t>(kLook - kLook / 8)) return false;
    std::vector<std::int64_t> counts(2 * (kDense + 1));  // neighbours in two arrays, so that equal ones need not wait
    T far[kLook];
    for (std::size_t begin = 0; begin < n; begin += kLook) {
        const std::size_t end = std::min(begin + kLook, n);
        std::size_t there = 0;
        for (std::size_t i = begin; i < end; ++i) {
            const bool near = is_near(values[i]), counted = present == nullptr || present[i] != 0;
            ++counts[2 * (near && counted ? distance(values[i]) : kDense) + i % 2];
            far[there] = values[i];
            there += counted && !near;
        }
        add(far, nullptr, nullptr, there);
    }
    for (std::size_t i = 0; i < kDense; ++i) {
        const std::int64_t count = counts[2 * i] + counts[2 * i + 1];
        if (count > 0) add(static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + i), count);
    }
    return true;
}

#define FEEDLINE_ADD(T) \
    template void ValueTable::add<T>(const T*, const std::uint8_t*, const std::int64_t*, std::size_t);
FEEDLINE_ADD(std::int8_t)
FEEDLINE_ADD(std::int16_t)
FEEDLINE_ADD(std::int32_t)
FEEDLINE_ADD(std::int64_t)
FEEDLINE_ADD(std::uint8_t)
FEEDLINE_ADD(std::uint16_t)
FEEDLINE_ADD(std::uint32_t)
FEEDLINE_ADD(std::uint64_t)
#undef FEEDLINE_ADD

void ValueTable::add(const std::int64_t* bounds, const char* data, std::size_t size, const std::uint8_t* present,
                     const std::int64_t* counts, std::size_t n) {
    std::uint64_t seeds[9];  // the hashes of all lengths up to that of a word
    for (std::size_t length = 0; length < 9; ++length) seeds[length] = mix64(length + kRows);
    std::uint64_t hashes[kBlock], words[kBlock];
    const auto text = [&](std::size_t i) {
        return std::string_view(data + bounds[i], static_cast<std::size_t>(bounds[i + 1] - bounds[i]));
    };
    for (std::size_t begin = 0; begin < n; begin += kBlock) {
        const std::size_t end = std::min(begin + kBlock, n);
        for (std::size_t i = begin; i < end; ++i) {
            const std::string_view value = text(i);
            const std::uint64_t word = first_word(value.data(), value.size(), size - static_cast<std::size_t>(bounds[i]));
            std::uint64_t hash = seeds[0];
            if (value.size() > 8) {
                hash = hash_bytes(value.data(), value.size());
            } else if (!value.empty()) {
                hash = mix64(seeds[value.size()] ^ word);
            }
            words[i - begin] = word;
            hashes[i - begin] = hash;
            fetch(hash);
        }
        for (std::size_t i = begin; i < end; ++i) {
            if (present != nullptr && present[i] == 0) continue;
            add_text(text(i), hashes[i - begin], words[i - begin], counts == nullptr ? 1 : counts[i]);
        }
    }
}

std::int64_t ValueTable::find(std::int64_t value) const {
    const std::uint64_t hash = mix64(static_cast<std::uint64_t>(value));
    const std::size_t at = place(hash, [&](std::size_t number) { return integers_[number] == value; });
    return static_cast<std::int64_t>(slots_[at].number) - 1;
}

std::int64_t ValueTable::find(std::string_view value) const {
    const std::uint64_t word = first_word(value.data(), value.size(), value.size());
    const std::size_t at = place(hash_bytes(value.data(), value.size()),
                                 [&](std::size_t number) { return is_text(number, value, word); });
    return static_cast<std::int64_t>(slots_[at].number) - 1;
}

void ValueTable::merge(const ValueTable& other) {
    for (std::size_t i = 0; i < other.size(); ++i) {
        if (i + kBlock < other.size()) fetch(other.hashes_[i + kBlock]);
        if (bytes_) {
            add_text(other.text(i), other.hashes_[i], other.words_[i], other.counts_[i]);
        } else {
            add_integer(other.integers_[i], other.hashes_[i], other.counts_[i]);
        }
    }
    for (std::size_t i = 0; i < registers_.size(); ++i) registers_[i] = std::max(registers_[i], other.registers_[i]);
    error_ += other.error_;
}

std::vector<std::uint32_t> ValueTable::ranking() const {
    struct Ranked {
        std::int64_t count, integer;
        std::uint32_t number;
    };
    std::vector<Ranked> ranked(size());
    for (std::size_t i = 0; i < size(); ++i) ranked[i] = {counts_[i], bytes_ ? 0 : integers_[i], static_cast<std::uint32_t>(i)};
    std::sort(ranked.begin(), ranked.end(), [this](const Ranked& a, const Ranked& b) {
        if (a.count != b.count) return a.count > b.count;
        return bytes_ ? text(a.number) < text(b.number) : a.integer < b.integer;
    });
    std::vector<std::uint32_t> numbers(size());
    std::transform(ranked.begin(), ranked.end(), numbers.begin(), [](const Ranked& value) { return value.number; });
    return numbers;
}

void ValueTable::set_registers(const std::uint8_t* data) { std::copy_n(data, registers_.size(), registers_.begin()); }

void ValueTable::rebuild(std::size_t slots) {
    slots_.assign(slots, Slot{});
    for (std::size_t i = 0; i < hashes_.size(); ++i) {
        const std::size_t at = place(hashes_[i], [](std::size_t) { return false; });
        slots_[at] = {static_cast<std::uint32_t>(i + 1), static_cast<std::uint32_t>(hashes_[i] >> 32)};
    }
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
            words_[kept] = words_[i];
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
        words_.resize(kept);
    } else {
        integers_.resize(kept);
    }
    rebuild(slots_.size());
}

}  // namespace feedline
