// SPDX-License-Identifier: Apache-2.0
// Statistics of columns: moments of numbers, samples of rows, counts of values. All are merged exactly, so that the
// same chunks give the same numbers on any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace feedline {

// Moments of one column of numbers. NaN is counted apart, and in nothing else.
struct Moments {
    std::int64_t count = 0;
    std::int64_t nan = 0;
    double mean = 0;
    double squares = 0;  // sum of squared differences from the mean
};

// Returns the moments of column `column` of `rows` (count, width), and writes its least and greatest number to `low`
// and `high`, unless it has none. Rows whose byte in `present` is 0 are left out; null: none is. O(count).
template <class T>
Moments moments(const T* rows, const std::uint8_t* present, std::size_t count, std::size_t width, std::size_t column,
                T& low, T& high);

// The same for the differences of neighbouring `bounds` (count + 1).
Moments length_moments(const std::int64_t* bounds, const std::uint8_t* present, std::size_t count, std::int64_t& low,
                       std::int64_t& high);

// The rows of a range, numbered from `first`, whose hash is below `threshold`: a sample in which each row has the same
// probability. Appends index in the range and hash. O(count).
void sample_rows(std::uint64_t first, std::size_t count, std::uint64_t threshold, std::vector<std::int64_t>& rows,
                 std::vector<std::uint64_t>& hashes);

// Returns whether bounds of byte strings (count) ascend from 0 or more to `size` at most. O(count).
bool ascend(const std::int64_t* bounds, std::size_t count, std::size_t size);

// A hash of a byte string, which never changes.
std::uint64_t hash_bytes(const char* data, std::size_t size);

// Distinct values, integers or byte strings, each with a count. Values are numbered as they are first added: integers
// without counts in any order, all others in their own. Not safe to use from several threads at once.
class ValueTable {
public:
    static constexpr int kRegisterBits = 14;

    // With at least twice `capacity` values, a table keeps the most frequent ones: counts are then too small by at most
    // `error`, the sum of what was subtracted from each. 0: it keeps all.
    ValueTable(bool bytes, std::size_t capacity);

    std::size_t size() const { return hashes_.size(); }
    bool holds_bytes() const { return bytes_; }
    std::int64_t error() const { return error_; }
    std::int64_t count(std::size_t number) const { return counts_[number]; }
    std::int64_t integer(std::size_t number) const { return integers_[number]; }
    std::string_view text(std::size_t number) const {
        return {arena_.data() + ends_[number], ends_[number + 1] - ends_[number]};
    }

    void add(std::int64_t value, std::int64_t count);
    void add(std::string_view value, std::int64_t count);

    // Adds `n` integers. Those whose byte in `present` is 0 are left out; null: none is. Without `counts` each counts
    // once. T is an integer of 1 to 8 bytes; uint64 is kept as int64 of the same bits.
    template <class T>
    void add(const T* values, const std::uint8_t* present, const std::int64_t* counts, std::size_t n);

    // Adds `n` byte strings in the same way: those between `bounds` (n + 1), ascending, of the `size` bytes of `data`.
    void add(const std::int64_t* bounds, const char* data, std::size_t size, const std::uint8_t* present,
             const std::int64_t* counts, std::size_t n);

    // The number of a value, -1 if there is none.
    std::int64_t find(std::int64_t value) const;
    std::int64_t find(std::string_view value) const;

    // Adds the values, counts and error of another table of the same kind.
    void merge(const ValueTable& other);

    // The numbers of the values by falling count, equal ones by value.
    std::vector<std::uint32_t> ranking() const;

    // For each leading part of a hash, the longest run of zeros after it: of all values ever added (HyperLogLog).
    const std::vector<std::uint8_t>& registers() const { return registers_; }
    void set_registers(const std::uint8_t* data);
    void set_error(std::int64_t error) { error_ = error; }

private:
    struct Slot {
        std::uint32_t number = 0;  // of a value, + 1, or 0
        std::uint32_t tag = 0;     // upper half of its hash
    };

    template <class Equal>
    std::size_t place(std::uint64_t hash, Equal equal) const;
    template <class T>
    bool add_dense(const T* values, const std::uint8_t* present, std::size_t n);
    void fetch(std::uint64_t hash) const;
    void add_integer(std::int64_t value, std::uint64_t hash, std::int64_t count);
    void add_text(std::string_view value, std::uint64_t hash, std::uint64_t word, std::int64_t count);
    void insert_text(std::size_t at, std::string_view value, std::uint64_t hash, std::uint64_t word, std::int64_t count);
    bool is_text(std::size_t number, std::string_view value, std::uint64_t word) const;
    void insert(std::size_t at, std::uint64_t hash, std::int64_t count);
    void rebuild(std::size_t slots);
    void cut();

    bool bytes_;
    std::size_t capacity_;
    std::int64_t error_ = 0;
    std::vector<Slot> slots_;
    std::vector<std::uint64_t> hashes_;
    std::vector<std::int64_t> counts_;
    std::vector<std::int64_t> integers_;
    std::vector<std::uint64_t> words_;  // the first 8 bytes of each text
    std::vector<std::size_t> ends_;
    std::string arena_;
    std::vector<std::uint8_t> registers_;
};

}  // namespace feedline
