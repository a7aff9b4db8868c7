// SPDX-License-Identifier: Apache-2.0
// Columns of the parsers of rows: they grow row by row, and a bad row is taken out again.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "feedline/rows.h"

namespace feedline {

constexpr std::size_t kRowPad = 64;
constexpr std::uint64_t kReserve = std::uint64_t{1} << 30;
constexpr std::uint64_t kMaxSample = std::uint64_t{1} << 60;  // in place of any larger size

inline std::size_t row_item(RowType type) {
    static const std::uint8_t sizes[kRowTypes] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 1, 1};
    return sizes[static_cast<int>(type)];
}
inline bool is_string(RowType type) { return type == RowType::text || type == RowType::bytes; }
inline bool is_real(RowType type) { return type == RowType::float32 || type == RowType::float64; }

// The fault of a row.
struct RowFault {
    RowError code = RowError::none;
    const std::uint8_t* at = nullptr;
    int stream = -1;
    std::int64_t expected = 0, got = 0;
};

class RowSink {
public:
    // Strings of fields that `views` marks are pairs of int64, their begin and end in the text.
    RowSink(const std::vector<RowField>& fields, std::size_t rows, std::uint64_t limit,
            const std::vector<std::uint8_t>& views = {})
        : fields_(fields), views_(views), limit_(limit), marks_(fields.size()), bytes_(fields.size()) {
        views_.resize(fields.size(), 0);
        out.streams.resize(fields.size());
        used_ = fields.size() * (rows + 1) * sizeof(std::int64_t);
        for (std::size_t s = 0; s < fields.size(); ++s) {
            std::uint64_t size = row_item(fields[s].type);
            for (const std::int64_t dim : fields[s].shape) {
                const auto d = static_cast<std::uint64_t>(dim);
                size = d != 0 && size > kMaxSample / d ? kMaxSample : size * d;
            }
            bytes_[s] = views_[s] ? 2 * sizeof(std::int64_t) : is_string(fields[s].type) ? 0 : size;
            if (copies_strings(s)) push(out.streams[s].bounds, 0);
            if (fields[s].ragged) push(out.streams[s].offsets, 0);
            // Room for all samples at once, if they fit, as moving written data is expensive.
            else if (bytes_[s] != 0 && rows <= std::min(limit, kReserve) / bytes_[s])
                out.streams[s].values.recycle(rows * bytes_[s] + 1);  // one more, see `samples`
        }
    }

    void begin_row() {
        used_before_ = used_;
        for (std::size_t s = 0; s < marks_.size(); ++s) {
            const RowColumn& c = out.streams[s];
            marks_[s] = {c.values.size, c.bounds.size, c.missing.size, c.samples};
        }
    }

    // Returns room for n more samples of a stream of numbers, or null if they exceed the limit.
    std::uint8_t* samples(std::size_t s, std::uint64_t n) {
        RowColumn& c = out.streams[s];
        std::uint64_t size;
        if (__builtin_mul_overflow(bytes_[s], n, &size) || size > kMaxSample) size = kMaxSample;
        if (!pay(size)) return nullptr;
        if (c.values.capacity - c.values.size < size + 1) c.values.grow(size + 1);  // an address at least
        std::uint8_t* at = c.values.data + c.values.size;
        c.values.size += size;
        c.samples += n;
        return at;
    }
    std::uint8_t* sample(std::size_t s) { return samples(s, 1); }

    bool append(std::size_t s, const std::uint8_t* from, std::size_t n) {
        if (!pay(n)) return false;
        CtfBytes& values = out.streams[s].values;
        if (n == 0) return true;
        if (values.capacity - values.size < n) values.grow(n);
        std::memcpy(values.data + values.size, from, n);
        values.size += n;
        return true;
    }
    bool end_string(std::size_t s) {
        RowColumn& c = out.streams[s];
        if (!pay(sizeof(std::int64_t))) return false;
        push(c.bounds, static_cast<std::int64_t>(c.values.size));
        ++c.samples;
        return true;
    }

    // Adds a missing sample to an optional stream.
    bool absent(std::size_t s) {
        const std::uint64_t values = is_string(fields_[s].type) ? 1 : bytes_[s] / row_item(fields_[s].type);
        return (copies_strings(s) ? end_string(s) : zeros(s)) && miss(s, 0, values);
    }
    // Marks n values of the latest sample of an optional stream, from `place` on, as missing.
    bool miss(std::size_t s, std::uint64_t place, std::uint64_t n) {
        RowColumn& c = out.streams[s];
        if (!pay(2 * sizeof(std::int64_t))) return false;
        const std::uint64_t values = is_string(fields_[s].type) ? 1 : bytes_[s] / row_item(fields_[s].type);
        push(c.missing, static_cast<std::int64_t>((c.samples - 1) * values + place));
        push(c.missing, static_cast<std::int64_t>(n));
        return true;
    }
    // The values of the latest sample of a stream of numbers.
    const std::uint8_t* latest(std::size_t s) const {
        return out.streams[s].values.data + out.streams[s].values.size - bytes_[s];
    }

    // Ends row `i`, whose text begins at `row`. `base` is the offset of that byte. Returns false if the limit is
    // reached.
    bool end_row(std::size_t i, const RowFault& fault, const std::uint8_t* row, std::uint64_t base) {
        const bool good = fault.code == RowError::none || forget(i, fault, row, base);
        for (std::size_t s = 0; s < fields_.size(); ++s)
            if (fields_[s].ragged) push(out.streams[s].offsets, static_cast<std::int64_t>(out.streams[s].samples));
        return good;
    }

    // The number of samples of the row in stream `size_stream`, or if that is -1 in the longest.
    std::uint32_t count(int size_stream) const {
        std::uint64_t longest = 0;
        for (std::size_t s = 0; s < fields_.size(); ++s)
            if (size_stream < 0 || static_cast<std::size_t>(size_stream) == s)
                longest = std::max(longest, out.streams[s].samples - marks_[s].samples);
        return static_cast<std::uint32_t>(longest);
    }
    std::uint64_t used() const { return used_; }
    std::uint64_t limit() const { return limit_; }

    RowColumns out;

private:
    struct Mark {
        std::size_t values, bounds, missing;
        std::uint64_t samples;
    };

    bool copies_strings(std::size_t s) const { return is_string(fields_[s].type) && !views_[s]; }

    bool pay(std::uint64_t bytes) {
        used_ += bytes;
        return used_ <= limit_;
    }

    static void push(CtfBytes& bytes, std::int64_t value) {
        if (bytes.capacity - bytes.size < sizeof value) bytes.grow(sizeof value);
        std::memcpy(bytes.data + bytes.size, &value, sizeof value);
        bytes.size += sizeof value;
    }

    bool forget(std::size_t i, RowFault fault, const std::uint8_t* row, std::uint64_t base) {
        for (std::size_t s = 0; s < fields_.size(); ++s) {
            RowColumn& c = out.streams[s];
            c.values.size = marks_[s].values;
            c.bounds.size = marks_[s].bounds;
            c.missing.size = marks_[s].missing;
            c.samples = marks_[s].samples;
        }
        bool good = fault.code != RowError::memory_limit;
        if (good) used_ = used_before_;
        for (std::size_t s = 0; good && s < fields_.size(); ++s) {
            if (fields_[s].ragged) continue;
            good = copies_strings(s) ? end_string(s) : zeros(s);
            if (!good)
                fault = {RowError::memory_limit, row, static_cast<int>(s), static_cast<std::int64_t>(limit_),
                         static_cast<std::int64_t>(used_)};
        }
        const CtfErrorRecord record{base + static_cast<std::uint64_t>(fault.at - row),
                                    fault.expected,
                                    fault.got,
                                    static_cast<std::uint32_t>(i),
                                    static_cast<std::int16_t>(fault.stream),
                                    static_cast<std::uint16_t>(fault.code)};
        out.errors.grow(sizeof record);
        std::memcpy(out.errors.data + out.errors.size, &record, sizeof record);
        out.errors.size += sizeof record;
        return good;
    }

    bool zeros(std::size_t s) {
        std::uint8_t* at = sample(s);
        if (at != nullptr) std::memset(at, 0, bytes_[s]);
        return at != nullptr;
    }

    const std::vector<RowField>& fields_;
    std::vector<std::uint8_t> views_;
    std::uint64_t limit_, used_, used_before_ = 0;
    std::vector<Mark> marks_;
    std::vector<std::uint64_t> bytes_;  // of a sample
};

// Calls machine.row(begin, end) for each row, with a newline at end[-1]. A row without one is copied.
template <class Machine>
RowColumns parse_rows(Machine& machine, RowSink& sink, const Rows& rows) {
    std::vector<std::uint8_t> scratch;
    for (std::size_t i = 0; i < rows.n; ++i) {
        std::size_t begin, n;
        if (!rows.find(i, begin, n)) {
            sink.out.outside = true;
            break;
        }
        const std::uint8_t* p = rows.text + begin;
        if (n == 0 || p[n - 1] != '\n') {
            scratch.assign(n + 1 + 2 * kRowPad, 0);
            if (n != 0) std::memcpy(scratch.data() + kRowPad, p, n);
            scratch[kRowPad + n] = '\n';
            p = scratch.data() + kRowPad;
            ++n;
        }
        sink.begin_row();
        machine.fault = RowFault{};
        machine.row(p, p + n);
        if (!sink.end_row(i, machine.fault, p, begin)) break;
    }
    return std::move(sink.out);
}

}  // namespace feedline
