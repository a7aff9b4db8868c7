#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "feedline/rows.h"
#include "swar.h"

namespace feedline {
namespace {

constexpr std::size_t kMarkBytes = 3;
constexpr char kMark[] = "\xEF\xBB\xBF";

// The first place in [p, end) of one of two bytes, or end.
const std::uint8_t* find_either(const std::uint8_t* p, const std::uint8_t* end, std::uint8_t a, std::uint8_t b) {
    for (; end - p >= 8; p += 8) {
        const std::uint64_t v = load64(p);
        const unsigned hit = equal_bits(v, a) | equal_bits(v, b);
        if (hit) return p + __builtin_ctz(hit);
    }
    while (p < end && *p != a && *p != b) ++p;
    return p;
}

}  // namespace

RowIndexer::RowIndexer(std::shared_ptr<const JsonParser> parser, int size_stream, std::uint64_t max_bytes)
    : csv_(false),
      parser_(std::move(parser)),
      size_stream_(size_stream),
      max_bytes_(std::min(max_bytes, std::uint64_t{std::numeric_limits<std::uint32_t>::max()})) {}

RowIndexer::RowIndexer(std::uint8_t delimiter, std::uint64_t skip, std::uint64_t max_bytes)
    : csv_(true),
      delimiter_(delimiter),
      skip_(skip),
      max_bytes_(std::min(max_bytes, std::uint64_t{std::numeric_limits<std::uint32_t>::max()})) {}

void RowIndexer::feed(const std::uint8_t* block, std::size_t n, CtfBytes& entries) {
    if (error_ != RowError::none || n == 0) return;
    std::size_t taken = 0;
    if (!begun_) {
        taken = std::min(n, kMarkBytes - head_.size());
        head_.append(reinterpret_cast<const char*>(block), taken);
        if (head_.size() < kMarkBytes) return;
        begin(entries);
        if (error_ != RowError::none) return;
    }
    csv_ ? cells_of(block + taken, n - taken, entries) : lines_of(block + taken, n - taken, entries);
    if (error_ == RowError::none) bytes_ += n - taken;
}

void RowIndexer::begin(CtfBytes& entries) {
    begun_ = true;
    if (head_.size() >= 2 && (head_.compare(0, 2, "\xFF\xFE") == 0 || head_.compare(0, 2, "\xFE\xFF") == 0)) {
        error_ = RowError::utf16_input;
        return;
    }
    if (head_ == kMark) {
        row_ = bytes_ = kMarkBytes;
        return;
    }
    const auto* text = reinterpret_cast<const std::uint8_t*>(head_.data());
    csv_ ? cells_of(text, head_.size(), entries) : lines_of(text, head_.size(), entries);
    bytes_ = head_.size();
}

// Ends the row at byte `end`. Its last `n` bytes are at `tail`, the ones before in the carry.
bool RowIndexer::end_row(std::uint64_t end, const std::uint8_t* tail, std::size_t n, CtfBytes& entries) {
    const std::uint64_t size = end - row_;
    if (!blank_ && skip_ > 0) {
        --skip_;
    } else if (!blank_) {
        if (size > max_bytes_) {
            error_ = RowError::row_too_long;
            error_byte_ = row_;
            return false;
        }
        CtfEntry entry{row_line_ + 1, row_, static_cast<std::uint32_t>(size), 1};
        if (parser_ != nullptr) {
            if (!carry_.empty()) {
                if (n != 0) carry_.append(reinterpret_cast<const char*>(tail), n);
                tail = reinterpret_cast<const std::uint8_t*>(carry_.data());
            }
            entry.samples = parser_->samples(tail, entry.size, size_stream_);
        }
        if (entries.capacity - entries.size < sizeof entry) entries.grow(sizeof entry);
        std::memcpy(entries.data + entries.size, &entry, sizeof entry);
        entries.size += sizeof entry;
    }
    carry_.clear();
    row_ = end;
    row_line_ = line_;
    blank_ = true;
    return true;
}

void RowIndexer::lines_of(const std::uint8_t* block, std::size_t n, CtfBytes& entries) {
    const std::uint8_t* const end = block + n;
    for (const std::uint8_t* p = block; p < end;) {
        const auto* newline = static_cast<const std::uint8_t*>(std::memchr(p, '\n', static_cast<std::size_t>(end - p)));
        const std::uint8_t* const stop = newline == nullptr ? end : newline;
        for (const std::uint8_t* q = p; blank_ && q < stop; ++q) blank_ = *q == ' ' || *q == '\t' || *q == '\r';
        if (newline == nullptr) {
            if (bytes_ + static_cast<std::uint64_t>(end - block) - row_ > max_bytes_) {
                error_ = RowError::row_too_long;
                error_byte_ = row_;
                return;
            }
            if (parser_ != nullptr) carry_.append(reinterpret_cast<const char*>(p), static_cast<std::size_t>(end - p));
            return;
        }
        ++line_;
        if (!end_row(bytes_ + static_cast<std::uint64_t>(newline + 1 - block), p,
                     static_cast<std::size_t>(newline + 1 - p), entries))
            return;
        p = newline + 1;
    }
}

void RowIndexer::cells_of(const std::uint8_t* block, std::size_t n, CtfBytes& entries) {
    const std::uint8_t* const end = block + n;
    const auto place = [&](const std::uint8_t* at) { return bytes_ + static_cast<std::uint64_t>(at - block); };
    for (const std::uint8_t* p = block; p < end;) {
        if (closing_) {
            closing_ = false;
            if (*p == '"') {  // two quotes within quotes are one
                quoted_ = true;
                ++p;
                continue;
            }
        }
        if (quoted_) {
            const auto* quote = static_cast<const std::uint8_t*>(std::memchr(p, '"', static_cast<std::size_t>(end - p)));
            const std::uint8_t* const stop = quote == nullptr ? end : quote;
            line_ += static_cast<std::uint64_t>(std::count(p, stop, std::uint8_t{'\n'}));
            if (place(stop) - row_ > max_bytes_) {
                error_ = RowError::row_too_long;
                error_byte_ = row_;
                return;
            }
            p = stop;
            if (quote != nullptr) {
                quoted_ = false;
                closing_ = true;
                ++p;
            }
            continue;
        }
        const std::uint8_t* const q = find_either(p, end, '"', '\n');
        for (const std::uint8_t* c = p; blank_ && c < q; ++c) blank_ = *c == '\r';
        if (q == end) break;
        if (*q == '"') {
            const std::uint8_t previous = q > block ? q[-1] : before_;
            blank_ = false;
            quoted_ = place(q) == row_ || previous == delimiter_;
        } else {
            ++line_;
            if (!end_row(place(q + 1), nullptr, 0, entries)) return;
        }
        p = q + 1;
    }
    if (n != 0) before_ = end[-1];
}

void RowIndexer::finish(CtfBytes& entries) {
    if (error_ != RowError::none) return;
    if (!begun_) begin(entries);
    if (error_ != RowError::none) return;
    if (bytes_ > row_) {
        ++line_;
        end_row(bytes_, nullptr, 0, entries);
    }
}

}  // namespace feedline
