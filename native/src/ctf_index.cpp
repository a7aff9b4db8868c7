#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "ctf_masks.h"
#include "feedline/cpu.h"
#include "feedline/ctf.h"
#include "swar.h"
#include "system.h"

namespace feedline {

CtfBytes::CtfBytes(CtfBytes&& other) noexcept { *this = std::move(other); }

CtfBytes& CtfBytes::operator=(CtfBytes&& other) noexcept {
    std::swap(data, other.data);
    std::swap(size, other.size);
    std::swap(capacity, other.capacity);
    std::swap(piece_, other.piece_);
    return *this;
}

CtfBytes::~CtfBytes() { free_memory(); }

void CtfBytes::free_memory() noexcept {
    if (piece_.begin == nullptr)
        std::free(data);
    else
        RecycledMemory::of_chunks().give_back(piece_);
}

void CtfBytes::grow(std::size_t extra) {
    if (capacity - size >= extra) return;
    if (extra > std::numeric_limits<std::size_t>::max() / 2 - size) throw std::bad_alloc();
    const std::size_t new_capacity = std::max({size + extra, capacity + capacity / 2, std::size_t{256}});
    void* moved = std::realloc(piece_.begin == nullptr ? data : nullptr, new_capacity);
    if (moved == nullptr) throw std::bad_alloc();
    if (piece_.begin != nullptr) {
        std::memcpy(moved, data, size);
        free_memory();
        piece_ = {};
    }
    data = static_cast<std::uint8_t*>(moved);
    capacity = new_capacity;
    // Without huge pages the page faults of a large chunk cost more than parsing it.
    constexpr std::size_t huge = std::size_t{2} << 20;
    if (new_capacity >= 2 * huge) {
        const std::size_t skip = (huge - reinterpret_cast<std::uintptr_t>(data) % huge) % huge;
        advise_huge_pages(data + skip, (new_capacity - skip) / huge * huge);
    }
}

void CtfBytes::recycle(std::size_t room) {
    if (capacity != 0 || room < kMinRecycledBytes) return grow(room);
    piece_ = RecycledMemory::of_chunks().take(room);
    data = reinterpret_cast<std::uint8_t*>(piece_.begin);
    capacity = piece_.bytes;
}

void CtfBytes::trim() noexcept {
    if (piece_.begin != nullptr || size == 0 || size == capacity) return;
    if (void* trimmed = std::realloc(data, size)) data = static_cast<std::uint8_t*>(trimmed), capacity = size;
}

namespace {

constexpr std::uint8_t kMark[3] = {0xEF, 0xBB, 0xBF};
constexpr std::size_t kWords = 64;  // masks computed at a time: 4 KB of text

void newlines_portable(const std::uint8_t* p, std::size_t words, std::uint64_t* masks) {
    for (std::size_t w = 0; w < words; ++w, p += 64) {
        std::uint64_t mask = 0;
        for (unsigned i = 0; i < 8; ++i) mask |= std::uint64_t{equal_bits(load64(p + 8 * i), '\n')} << (8 * i);
        masks[w] = mask;
    }
}

void newlines_and_pipes_portable(const std::uint8_t* p, std::size_t words, std::uint64_t* masks) {
    for (std::size_t w = 0; w < words; ++w, p += 64) {
        std::uint64_t mask = 0;
        for (unsigned i = 0; i < 8; ++i) {
            const std::uint64_t v = load64(p + 8 * i);
            mask |= std::uint64_t{equal_bits(v, '\n') | equal_bits(v, '|')} << (8 * i);
        }
        masks[w] = mask;
    }
}

CtfMasks pick_masks(bool pipes) {
#ifdef FEEDLINE_X86
    if (cpu().avx2) return pipes ? ctf_newlines_and_pipes_avx2 : ctf_newlines_avx2;
#endif
    return pipes ? newlines_and_pipes_portable : newlines_portable;
}

bool is_space(std::uint8_t c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Whether this byte may follow a stream name; the parser ends names the same way.
bool ends_name(std::uint8_t c) { return c == '|' || c <= ' ' || c >= 0x80; }

}  // namespace

CtfIndexer::CtfIndexer(std::string size_stream, bool skip_ids, bool lenient)
    : name_(std::move(size_stream)), skip_ids_(skip_ids), lenient_(lenient) {}

void CtfIndexer::fail(CtfError error, std::uint64_t byte) {
    if (phase_ == Phase::done) return;
    error_ = error;
    error_byte_ = byte;
    phase_ = Phase::done;
}

bool CtfIndexer::emit(std::uint64_t key, std::uint64_t from, std::uint64_t to, std::uint64_t samples,
                      CtfBytes& entries) {
    if (to - from > std::numeric_limits<std::uint32_t>::max()) {
        fail(CtfError::sequence_too_long, from);
        return false;
    }
    const CtfEntry entry{key, from, static_cast<std::uint32_t>(to - from), static_cast<std::uint32_t>(samples)};
    if (entries.capacity - entries.size < sizeof entry) entries.grow(sizeof entry);
    std::memcpy(entries.data + entries.size, &entry, sizeof entry);
    entries.size += sizeof entry;
    return true;
}

void CtfIndexer::begin_with_part_of_mark() {
    ids_ = !skip_ids_;
    line_blank_ = false;
    phase_ = Phase::rows;
    if (ids_) fail(CtfError::no_sequence_id, 0);
}

// Skips the byte order mark and white space. Returns the start of the first row, or end.
const std::uint8_t* CtfIndexer::prologue(const std::uint8_t* p, const std::uint8_t* end) {
    const auto offset = [&](const std::uint8_t* at) { return bytes_ + static_cast<std::uint64_t>(at - block_); };
    while (phase_ == Phase::mark && p < end) {
        const std::uint64_t at = offset(p);
        if (at < 2) first_[at] = *p;
        if (at == 1 && ((first_[0] == 0xFF && first_[1] == 0xFE) || (first_[0] == 0xFE && first_[1] == 0xFF))) {
            fail(CtfError::utf16_input, 0);
            return end;
        }
        if (at == mark_ && mark_ < 3 && *p == kMark[at]) {
            ++mark_, ++p;
            if (mark_ == 3) phase_ = Phase::space;
        } else if (at == 0 && (*p == 0xFF || *p == 0xFE)) {
            ++p;  // may become a UTF-16 mark
        } else if (at == 0) {
            phase_ = Phase::space;
        } else {
            // A part of a mark is no mark, so the first row begins with it.
            begin_with_part_of_mark();
        }
    }
    while (phase_ == Phase::space && p < end) {
        if (*p == '\n') ++line_;
        if (is_space(*p)) {
            ++p;
            continue;
        }
        line_start_ = sequence_start_ = offset(p);
        ids_ = !skip_ids_ && *p != '|';
        in_id_ = ids_;
        phase_ = Phase::rows;
    }
    return p;
}

// Handles a complete id at the start of a line. Returns false if the file is refused.
bool CtfIndexer::id_is_known(CtfBytes& entries) {
    in_id_ = false;
    if (first_row_) {
        first_row_ = false;
        key_ = id_;
        if (!id_found_) {
            fail(CtfError::no_sequence_id, line_start_);
            return false;
        }
        return true;
    }
    if (id_found_ && id_ != key_) {
        if (samples_ > 0 && !emit(key_, sequence_start_, line_start_, samples_, entries)) return false;
        key_ = id_;
        sequence_start_ = line_start_;
        samples_ = 0;
    }
    return true;
}

// Continues to read the id at the start of a line. Returns its end, or `end` with in_id_ still set.
const std::uint8_t* CtfIndexer::read_id(const std::uint8_t* p, const std::uint8_t* end, CtfBytes& entries) {
    constexpr std::uint64_t limit = std::numeric_limits<std::uint64_t>::max();
    for (; p < end; ++p) {
        const unsigned digit = static_cast<unsigned>(*p) - '0';
        if (digit > 9) {
            id_is_known(entries);
            return p;
        }
        if (id_ > (limit - digit) / 10) {
            fail(CtfError::id_overflow, line_start_);
            return end;
        }
        id_ = id_ * 10 + digit;
        id_found_ = true;
    }
    return p;
}

// Continues to compare a name with the size stream's, after its pipe.
const std::uint8_t* CtfIndexer::match_name(const std::uint8_t* p, const std::uint8_t* end) {
    for (; p < end; ++p) {
        if (name_matched_ == name_.size()) {
            line_counts_ |= ends_name(*p);
            in_name_ = false;
            return p;
        }
        if (*p != static_cast<std::uint8_t>(name_[name_matched_])) {
            in_name_ = false;
            return p;
        }
        ++name_matched_;
    }
    return p;
}

inline bool CtfIndexer::end_line(std::uint64_t line_end, bool ids, bool counts, CtfBytes& entries) {
    if (ids) {
        samples_ += counts;
    } else if (counts && !emit(line_, line_start_, line_end, 1, entries)) {
        return false;
    }
    ++line_;
    line_start_ = line_end;
    line_counts_ = false;
    return true;
}

template <bool Ids, bool Main, bool Lenient>
void CtfIndexer::rows(const std::uint8_t* p, const std::uint8_t* end, CtfBytes& entries) {
    const CtfMasks make_masks = pick_masks(Main);
    const auto offset = [&](const std::uint8_t* at) { return bytes_ + static_cast<std::uint64_t>(at - block_); };
    if (Ids && in_id_) p = read_id(p, end, entries);
    if (Main && in_name_) p = match_name(p, end);
    const std::uint8_t* blank_from = p;  // lenient: the line is checked from here on
    const auto judge_blank = [&](const std::uint8_t* to) {
        for (const std::uint8_t* q = blank_from; line_blank_ && q < to; ++q) line_blank_ = *q <= ' ';
    };
    if constexpr (Lenient) {
        if (Ids && id_found_) line_blank_ = false;
    }

    std::uint64_t masks[kWords];
    std::uint8_t tail[64];
    while (p < end && phase_ == Phase::rows) {
        std::size_t words = std::min<std::size_t>(static_cast<std::size_t>(end - p) / 64, kWords);
        if (words > 0) {
            make_masks(p, words, masks);
        } else {
            std::memset(tail, 0, sizeof tail);
            std::memcpy(tail, p, static_cast<std::size_t>(end - p));
            words = 1;
            make_masks(tail, 1, masks);
        }
        for (std::size_t w = 0; w < words; ++w) {
            const std::uint8_t* group = p + 64 * w;
            for (std::uint64_t mask = masks[w]; mask != 0; mask &= mask - 1) {
                const std::uint8_t* at = group + __builtin_ctzll(mask);
                if constexpr (Main) {
                    if (*at == '|') {
                        if (!line_counts_) {
                            in_name_ = true;
                            name_matched_ = 0;
                            match_name(at + 1, end);
                        }
                        continue;
                    }
                    in_name_ = false;
                }
                const std::uint8_t* next = at + 1;
                if constexpr (Lenient) judge_blank(at);
                const bool counts = (!Main || line_counts_) && !(Lenient && line_blank_);
                if (!end_line(offset(next), Ids, counts, entries)) return;
                if constexpr (Lenient) {
                    line_blank_ = true;
                    blank_from = next;
                }
                if constexpr (Ids) {
                    id_ = 0;
                    id_found_ = false;
                    if (end - next >= 8) {
                        const std::uint64_t digits = minus_zeros(load64(next));
                        const unsigned n = leading_digits(digits);
                        if (n < 8) {
                            if (n > 0) {
                                id_found_ = true;
                                id_ = digits_value(digits, n);
                                if constexpr (Lenient) line_blank_ = false;
                                if (!id_is_known(entries)) return;
                            }
                            continue;
                        }
                    }
                    in_id_ = true;
                    read_id(next, end, entries);
                    if (phase_ != Phase::rows) return;
                    if constexpr (Lenient) line_blank_ = !id_found_;
                }
            }
        }
        p += std::min<std::size_t>(64 * words, static_cast<std::size_t>(end - p));
    }
    if constexpr (Lenient) judge_blank(end);
}

void CtfIndexer::feed(const std::uint8_t* block, std::size_t n, CtfBytes& entries) {
    block_ = block;
    const std::uint8_t* p = block;
    const std::uint8_t* end = block + n;
    if (phase_ == Phase::mark || phase_ == Phase::space) p = prologue(p, end);
    if (phase_ == Phase::rows) {
        const int variant = (ids_ ? 4 : 0) | (name_.empty() ? 0 : 2) | (lenient_ ? 1 : 0);
        switch (variant) {
            case 0: rows<false, false, false>(p, end, entries); break;
            case 1: rows<false, false, true>(p, end, entries); break;
            case 2: rows<false, true, false>(p, end, entries); break;
            case 3: rows<false, true, true>(p, end, entries); break;
            case 4: rows<true, false, false>(p, end, entries); break;
            case 5: rows<true, false, true>(p, end, entries); break;
            case 6: rows<true, true, false>(p, end, entries); break;
            default: rows<true, true, true>(p, end, entries); break;
        }
    }
    bytes_ += n;
    block_ = nullptr;
}

void CtfIndexer::finish(CtfBytes& entries) {
    if (phase_ == Phase::mark && bytes_ > 0 && mark_ < 3) {
        // One or two bytes were held back, as they could begin a mark.
        begin_with_part_of_mark();
    }
    if (phase_ == Phase::mark || phase_ == Phase::space) fail(CtfError::empty_input, 0);
    if (phase_ != Phase::rows) return;
    if (in_id_ && !id_is_known(entries)) return;
    if (in_name_ && name_matched_ == name_.size()) line_counts_ = true;
    if (line_start_ < bytes_) {
        if (lenient_ && id_found_) line_blank_ = false;
        const bool counts = (name_.empty() || line_counts_) && !(lenient_ && line_blank_);
        end_line(bytes_, ids_, counts, entries);
    }
    if (phase_ != Phase::rows) return;
    if (ids_ && samples_ > 0) emit(key_, sequence_start_, bytes_, samples_, entries);
    phase_ = Phase::done;
}

}  // namespace feedline
