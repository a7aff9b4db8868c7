#include "feedline/recordio.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "record_bytes.h"
#include "system.h"

namespace feedline {

namespace {

constexpr std::uint32_t kMagic = 0xced7230aU;
constexpr std::uint32_t kLength = (1U << 29) - 1;  // the bits of a length
constexpr std::uint64_t kHead = 8;               // bytes of a part before its own
constexpr std::uint64_t kHeader = 24;            // of a record
constexpr std::uint64_t kBlock = 64 << 10;       // bytes that are searched at a time
constexpr std::uint64_t kAhead = 8 << 20;        // bytes that the kernel is advised to read ahead
constexpr std::uint64_t kDense = 128 << 10;      // size up to which records are read ahead

enum Kind : std::uint32_t { kAll = 0, kFirst = 1, kMiddle = 2, kLast = 3 };

std::uint64_t padded(std::uint64_t n) { return (n + 3) / 4 * 4; }

std::uint32_t word(const std::uint8_t* from) {
    std::uint32_t value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

bool begins_record(std::uint32_t magic, std::uint32_t head) { return magic == kMagic && head >> 29 <= kFirst; }

struct Part {
    std::uint64_t begin, size;  // of its bytes
};

struct Record {
    std::vector<Part> parts;
    std::uint64_t end;     // of the last part
    std::uint64_t length;  // of the parts and the magic numbers between them
    RecordIOError error;
    std::uint64_t error_byte;
    std::int64_t expected, got;

    bool fail(RecordIOError code, std::uint64_t byte, std::uint64_t expect = 0, std::uint64_t instead = 0) {
        error = code;
        error_byte = byte;
        expected = static_cast<std::int64_t>(expect);
        got = static_cast<std::int64_t>(instead);
        return false;
    }
};

// Finds the parts of the record at a place. Returns false and sets the error if there is none.
template <class Bytes>
bool find_parts(Bytes& bytes, std::uint64_t at, Record& record) {
    record.parts.clear();
    record.length = 0;
    record.error = RecordIOError::none;
    for (bool first = true;; first = false) {
        std::uint32_t head[2];
        const ReadStatus status = bytes.get(at, head, sizeof head);
        if (status == ReadStatus::lost) return record.fail(RecordIOError::io, at);
        if (status == ReadStatus::cut) return record.fail(RecordIOError::cut, at, kHead, bytes.size - std::min(at, bytes.size));
        if (head[0] != kMagic) return record.fail(RecordIOError::bad_magic, at, kMagic, head[0]);
        const std::uint32_t kind = head[1] >> 29;
        const std::uint64_t size = head[1] & kLength;
        if (first ? kind > kFirst : kind != kMiddle && kind != kLast)
            return record.fail(RecordIOError::bad_part, at, first ? kAll : kLast, kind);
        if (size > bytes.size - at - kHead)
            return record.fail(RecordIOError::cut, at, kHead + size, bytes.size - at);
        record.parts.push_back({at + kHead, size});
        record.length += size + (first ? 0 : sizeof kMagic);
        record.end = at + kHead + size;
        if (kind == kAll || kind == kLast) return true;
        at += kHead + padded(size);
    }
}

// Reads bytes of a record, from `at` on, with the magic numbers between its parts. Returns false if the disk failed.
template <class Bytes>
bool get_joined(Bytes& bytes, const Record& record, std::uint64_t at, void* into, std::uint64_t n) {
    auto* to = static_cast<std::uint8_t*>(into);
    std::uint64_t before = 0;
    for (const Part& part : record.parts) {
        std::uint8_t magic[sizeof kMagic];
        std::memcpy(magic, &kMagic, sizeof kMagic);
        for (std::uint64_t k = 0; before != 0 && k < sizeof kMagic; ++k)
            if (const std::uint64_t place = before - sizeof kMagic + k; place >= at && place < at + n)
                to[place - at] = magic[k];
        const std::uint64_t from = std::max(before, at), stop = std::min(before + part.size, at + n);
        if (from < stop && bytes.get(part.begin + from - before, to + (from - at), stop - from) != ReadStatus::ok)
            return false;
        before += part.size + sizeof kMagic;
    }
    return true;
}

// Returns the first place, at or after `at`, at which a record begins, or the end of the file.
template <class Bytes>
std::uint64_t next_record(Bytes& bytes, std::uint64_t at, ReadStatus& status) {
    std::vector<std::uint8_t> block(kBlock + kHead);
    for (at = padded(at); at < bytes.size && bytes.size - at >= kHead;) {
        const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), bytes.size - at));
        status = bytes.get(at, block.data(), n);
        if (status != ReadStatus::ok) return bytes.size;
        std::size_t k = 0;
        for (; k + kHead <= n; k += 4)
            if (begins_record(word(block.data() + k), word(block.data() + k + 4))) return at + k;
        at += k;
    }
    return bytes.size;
}

// Whether a record whose next one would be at `at` ends there: at the end of the file, at another record, at one
// whose magic number alone is damaged, as its length leads to the end or to a record, or at zeros, which are there in
// place of a block that was lost. There may be zeros in its header, too, so it must be longer than that.
template <class Bytes>
bool ends_at(Bytes& bytes, std::uint64_t at, std::uint64_t length_before, ReadStatus& status) {
    std::uint32_t head[2] = {};
    if (at >= bytes.size) return true;
    const std::uint64_t rest = bytes.size - at;
    status = bytes.get(at, head, std::min<std::uint64_t>(sizeof head, rest));
    if (status != ReadStatus::ok) return false;
    if (rest < sizeof head) return std::memcmp(head, &kMagic, std::min<std::uint64_t>(sizeof kMagic, rest)) == 0;  // cut
    if (head[0] == kMagic || (length_before >= kHeader && head[0] == 0 && head[1] == 0)) return true;
    if (head[1] >> 29 > kFirst) return false;
    const std::uint64_t length = head[1] & kLength, next = at + kHead + padded(length);
    if (next >= bytes.size) return length <= bytes.size - at - kHead;
    std::uint32_t magic;
    status = bytes.get(next, &magic, sizeof magic);
    return status == ReadStatus::ok && magic == kMagic;
}

// Reads the flag of a record. Returns false and sets the error if it is shorter than it says.
template <class Bytes>
bool read_flag(Bytes& bytes, Record& record, std::uint32_t& flag, std::uint64_t& image) {
    flag = 0;
    image = kHeader;
    const std::uint64_t byte = record.parts.front().begin;
    if (record.length < kHeader) return record.fail(RecordIOError::header, byte, kHeader, record.length);
    if (!get_joined(bytes, record, 0, &flag, sizeof flag)) return record.fail(RecordIOError::io, byte);
    image = kHeader + sizeof(float) * std::uint64_t{flag};
    return image <= record.length || record.fail(RecordIOError::header, byte, image, record.length);
}

}  // namespace

void RecordIOIndexer::next(std::size_t records, std::vector<RecordIOEntry>& out) {
    FileBytes bytes{descriptor_, size_, reach_, readable_};
    Record record;
    ReadStatus status = ReadStatus::ok;
    for (std::size_t i = 0; i < records && !done_; ++i) {
        if (at_ >= size_) {
            done_ = true;
            break;
        }
        const std::uint64_t begin = at_;
        std::uint64_t end = 0, after = 0, image = 0;
        std::uint32_t flag = 0, samples = 0;
        bool sample = true;
        if (number_ == 0) ranges_ = true;  // unless it is read and shows otherwise
        if (find_parts(bytes, begin, record) && ends_at(bytes, padded(record.end), record.length, status)) {
            any_ = true;
            end = record.end;
            after = padded(end);
            if (read_flag(bytes, record, flag, image) && end - begin <= std::numeric_limits<std::uint32_t>::max()) {
                const bool range = flag == 2 && record.length == image;
                if (number_ == 0) ranges_ = range;
                sample = !(ranges_ && range);
                samples = flag == 0 ? 1 : flag;
            }
        } else if (record.error != RecordIOError::io && status != ReadStatus::lost) {
            end = after = next_record(bytes, begin + 4, status);
            any_ = any_ || end < size_;
        }
        if (record.error == RecordIOError::io || status == ReadStatus::lost) {
            error_ = RecordIOError::io;
            error_byte_ = begin;
            errno_ = bytes.error;
            done_ = true;
            break;
        }
        if (!any_ && (size_ < kHead || (after >= size_ && record.error == RecordIOError::bad_magic))) {
            error_ = RecordIOError::bad_magic;
            done_ = true;
            break;
        }
        if (sample) {
            const auto size = std::min<std::uint64_t>(end - begin, std::numeric_limits<std::uint32_t>::max());
            out.push_back({number_, begin, static_cast<std::uint32_t>(size), samples});
        }
        ++number_;
        at_ = std::min(after, size_);
        if (after - begin <= kDense && at_ + kAhead / 2 > advised_ && at_ < size_) {
            const std::uint64_t from = std::max(advised_, at_);
            advised_ = from + kAhead;
            begin_reading(descriptor_, from, kAhead);
        }
    }
}

const void* read_recordio(const std::uint8_t* memory, std::size_t size, const std::int64_t* begin,
                          const std::int64_t* sizes, std::size_t n, const std::int64_t* label_bounds, float* labels,
                          RecordIOImages& images, std::vector<RecordIOFault>& faults) {
    MemoryBytes bytes{memory, size};
    Record record;
    bool joined = false;
    images.spans.assign(2 * n, 0);
    // The places of pictures in their records. Those of several parts are joined below.
    std::vector<std::pair<std::uint64_t, std::uint64_t>> places(n, {0, 0});
    for (std::size_t i = 0; i < n; ++i) {
        const auto from = static_cast<std::uint64_t>(begin[i]), to = from + static_cast<std::uint64_t>(sizes[i]);
        const auto expected = static_cast<std::uint64_t>(label_bounds[i + 1] - label_bounds[i]);
        float* mine = labels + label_bounds[i];
        std::uint32_t flag = 0;
        std::uint64_t image = 0;
        bytes.size = to;
        bool good = find_parts(bytes, from, record) &&
                    (record.end == to || record.fail(RecordIOError::length, from, to - from, record.end - from)) &&
                    read_flag(bytes, record, flag, image);
        if (const std::uint64_t count = flag == 0 ? 1 : flag; good && count != expected)
            good = record.fail(RecordIOError::labels, record.parts.front().begin, expected, count);
        if (good && !get_joined(bytes, record, flag == 0 ? 4 : kHeader, mine, sizeof(float) * expected))
            good = record.fail(RecordIOError::io, from);
        if (!good) {
            if (record.error == RecordIOError::io) return bytes.lost;
            std::fill_n(mine, expected, 0.0F);
            faults.push_back({static_cast<std::int64_t>(record.error_byte), record.expected, record.got,
                              static_cast<std::int32_t>(i), static_cast<std::int32_t>(record.error)});
        } else if (record.parts.size() == 1) {
            images.spans[2 * i] = static_cast<std::int64_t>(record.parts[0].begin + image);
            images.spans[2 * i + 1] = static_cast<std::int64_t>(to);
        } else {
            joined = true;
            places[i] = {image, record.length - image};
        }
    }
    if (!joined) return nullptr;
    images.bounds.assign(1, 0);
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < n; ++i)
        images.bounds.push_back(static_cast<std::int64_t>(
            total += places[i].second + static_cast<std::uint64_t>(images.spans[2 * i + 1] - images.spans[2 * i])));
    images.data.resize(total);
    for (std::size_t i = 0; i < n; ++i) {
        const auto from = static_cast<std::uint64_t>(images.spans[2 * i]);
        auto* to = images.data.data() + images.bounds[i];
        const auto count = static_cast<std::size_t>(images.bounds[i + 1] - images.bounds[i]);
        bytes.size = static_cast<std::uint64_t>(begin[i]) + static_cast<std::uint64_t>(sizes[i]);
        const bool in_parts = places[i].first != 0;
        if (!in_parts && bytes.get(from, to, count) == ReadStatus::lost) return bytes.lost;
        // The parts are found again, as memory may change.
        if (in_parts && find_parts(bytes, static_cast<std::uint64_t>(begin[i]), record) &&
            record.length == places[i].first + places[i].second)
            get_joined(bytes, record, places[i].first, to, count);
        if (bytes.lost != nullptr) return bytes.lost;
    }
    images.spans.clear();
    return nullptr;
}

}  // namespace feedline
