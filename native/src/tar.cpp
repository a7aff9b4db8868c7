#include "feedline/tar.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "record_bytes.h"
#include "system.h"

namespace feedline {

namespace {

constexpr std::uint64_t kBlock = 512;
constexpr std::uint64_t kMaxExtended = 1 << 20;  // bytes of an extended header
constexpr std::uint64_t kAhead = 8 << 20;        // bytes that the kernel is advised to read ahead
constexpr std::uint64_t kDense = 128 << 10;      // size up to which members are read ahead
constexpr std::uint64_t kMaxSize = std::uint64_t{1} << 62;

using Header = std::array<std::uint8_t, kBlock>;

bool is_zero(const Header& header) {
    return header[0] == 0 && std::all_of(header.begin(), header.end(), [](std::uint8_t byte) { return byte == 0; });
}

// The text of a header field, up to a NUL.
std::string_view field(const Header& header, std::size_t at, std::size_t n) {
    const auto* from = reinterpret_cast<const char*>(header.data()) + at;
    return {from, strnlen(from, n)};
}

bool parse_number(const Header& header, std::size_t at, std::size_t n, std::uint64_t& value) {
    value = 0;
    if ((header[at] & 0x80U) != 0) {  // base 256, big-endian; 0xff begins a negative one
        if (header[at] != 0x80U) return false;
        for (std::size_t i = 1; i < n; ++i) {
            if (value >= kMaxSize >> 8) return false;
            value = value << 8 | header[at + i];
        }
        return true;
    }
    std::string_view digits = field(header, at, n);
    const auto blank = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
    while (!digits.empty() && blank(digits.front())) digits.remove_prefix(1);
    while (!digits.empty() && blank(digits.back())) digits.remove_suffix(1);
    for (const char digit : digits) {
        if (digit < '0' || digit > '7') return false;
        value = value << 3 | static_cast<unsigned>(digit - '0');
    }
    return true;
}

// Whether the checksum is the sum of the header's bytes, with blanks for the checksum. Old writers added signed bytes.
bool is_sound(const Header& header) {
    std::uint64_t checksum;
    if (!parse_number(header, 148, 8, checksum)) return false;
    std::uint32_t sum = 0, high = 0;
    for (const std::uint8_t byte : header) {
        sum += byte;
        high += byte >> 7;
    }
    for (std::size_t i = 148; i < 156; ++i) {
        sum -= header[i];
        high -= header[i] >> 7;
    }
    sum += 8 * ' ';
    return checksum == sum || checksum == (sum - 256 * high);
}

// The attributes of the next member that extended headers set.
struct Extended {
    bool has_name = false, has_size = false, sparse = false, any = false;
    std::string name;
    std::uint64_t size = 0;
};

// Reads the records `length key=value\n` of a pax header.
bool parse_pax(std::string_view text, Extended& extended) {
    while (!text.empty() && text.front() != '\0') {
        std::size_t length = 0, at = 0;
        while (at < text.size() && text[at] >= '0' && text[at] <= '9' && length <= kMaxExtended)
            length = 10 * length + static_cast<std::size_t>(text[at++] - '0');
        if (at == 0 || at >= text.size() || text[at] != ' ' || length <= at + 1 || length > text.size() ||
            text[length - 1] != '\n')
            return false;
        const std::string_view record = text.substr(at + 1, length - at - 2);
        const std::size_t equals = record.find('=');
        if (equals == std::string_view::npos) return false;
        const std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
        if (key == "path") {
            extended.has_name = true;
            // Without slashes at its end, even for a file. This is Python's rule, and so WebDataset's.
            extended.name = value.substr(0, value.find_last_not_of('/') + 1);
        } else if (key == "size") {
            extended.has_size = true;
            extended.size = 0;
            if (value.empty()) return false;
            for (const char digit : value) {
                if (digit < '0' || digit > '9' || extended.size > kMaxSize / 10) return false;
                extended.size = 10 * extended.size + static_cast<std::uint64_t>(digit - '0');
            }
        } else if (key.substr(0, 11) == "GNU.sparse.") {
            extended.sparse = true;
        }
        text.remove_prefix(length);
    }
    return true;
}

struct Member {
    std::uint64_t begin, data, size, next;  // the places of its first header and its data, its size, the next header
    std::string name;
    bool regular;
};

enum class Step { member, end, fault };

// Walks the headers of an archive.
template <class Bytes>
class Walk {
public:
    Walk(Bytes& bytes, std::uint64_t at) : bytes_(bytes), at_(at) {}

    // Moves to the next member, of any type. A regular one may reach beyond the end.
    Step next(Member& member) {
        Extended extended;
        member.begin = at_;
        for (;;) {
            end_ = bytes_.end_of(at_, kBlock);
            if (at_ >= end_) return extended.any ? fail(TarError::cut, at_) : Step::end;
            if (end_ - at_ < kBlock) return end_in_block(extended.any);
            const ReadStatus status = bytes_.get(at_, header_.data(), kBlock);
            if (status != ReadStatus::ok) return fail(status == ReadStatus::lost ? TarError::io : TarError::cut, at_);
            if (is_zero(header_)) {
                if (extended.any) return fail(TarError::bad_header, at_);
                const TarError lost = skip_zeros();
                if (lost != TarError::none) return fail(lost, at_);
                member.begin = at_;
                continue;
            }
            member.name.assign(field(header_, 0, 100));
            std::uint64_t size;
            if (!is_sound(header_) || !parse_number(header_, 124, 12, size)) return fail(TarError::bad_header, at_);
            const char type = static_cast<char>(header_[156]);
            const bool folder = type == '\0' && !member.name.empty() && member.name.back() == '/';  // of V7
            const std::uint64_t data = at_ + kBlock;
            if (type == 'L' || type == 'K' || type == 'x' || type == 'X' || type == 'g') {
                const Step step = extend(type, data, size, extended);
                if (step == Step::fault) return step;
                at_ = after(data, size);
                continue;
            }
            if (extended.has_name)
                member.name = extended.name;
            else if (std::memcmp(header_.data() + 257, "ustar", 6) == 0 && header_[345] != 0)
                member.name.insert(0, std::string(field(header_, 345, 155)) + "/");
            if (extended.has_size) size = extended.size;
            if (extended.sparse || type == 'S') return fail(TarError::sparse, at_);
            if (type == '1' || type == '2') return fail(TarError::link, at_);
            if (type == 'M') return fail(TarError::volume, at_);
            if (size > kMaxSize) return fail(TarError::bad_header, at_);
            const bool plain = type == '0' || type == '7' || (type == '\0' && !folder);
            const bool bodiless = type == '3' || type == '4' || type == '5' || type == '6' || folder;
            member.regular = plain;
            member.data = data;
            member.size = bodiless ? 0 : size;
            member.next = after(data, member.size);
            at_ = member.next;
            return Step::member;
        }
    }

    TarError error = TarError::none;
    std::uint64_t error_byte = 0;
    std::uint64_t at() const { return at_; }

private:
    Step fail(TarError code, std::uint64_t byte) {
        error = code;
        error_byte = byte;
        return Step::fault;
    }

    static std::uint64_t after(std::uint64_t data, std::uint64_t size) {
        return data + (size + kBlock - 1) / kBlock * kBlock;
    }

    // Skips blocks of zeros, from the one that was read on.
    TarError skip_zeros() {
        std::array<std::uint8_t, 64 * kBlock> many;
        for (at_ += kBlock;;) {
            end_ = bytes_.end_of(at_, kBlock);
            if (end_ - at_ < kBlock) break;
            const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(many.size(), (end_ - at_) / kBlock * kBlock));
            const ReadStatus status = bytes_.get(at_, many.data(), n);
            if (status != ReadStatus::ok) return status == ReadStatus::lost ? TarError::io : TarError::cut;
            const auto* nonzero =
                std::find_if(many.data(), many.data() + n, [](std::uint8_t byte) { return byte != 0; });
            const auto zeros = static_cast<std::uint64_t>(nonzero - many.data());
            at_ += zeros / kBlock * kBlock;
            if (zeros < n) break;
        }
        return TarError::none;
    }

    // Ends at less than a block of bytes: zeros, or a header that was cut.
    Step end_in_block(bool extended) {
        header_.fill(0);
        const ReadStatus status = bytes_.get(at_, header_.data(), static_cast<std::size_t>(end_ - at_));
        if (status == ReadStatus::lost) return fail(TarError::io, at_);
        if (extended || !is_zero(header_)) return fail(TarError::cut, at_);
        at_ = end_;
        return Step::end;
    }

    Step extend(char type, std::uint64_t data, std::uint64_t size, Extended& extended) {
        if (size > kMaxExtended) return fail(TarError::bad_extended, data - kBlock);
        end_ = bytes_.end_of(data, size);
        if (data > end_ || size > end_ - data) return fail(TarError::cut, data - kBlock);
        text_.resize(size);
        const ReadStatus status = bytes_.get(data, text_.data(), size);
        if (status != ReadStatus::ok) return fail(status == ReadStatus::lost ? TarError::io : TarError::cut, data);
        extended.any |= type != 'g';
        if (type == 'L') {
            extended.has_name = true;
            extended.name = text_.substr(0, text_.find('\0'));
        } else if (type == 'g') {
            Extended global;
            if (!parse_pax(text_, global)) return fail(TarError::bad_extended, data);
            if (global.has_name || global.has_size || global.sparse) return fail(TarError::global, data);
        } else if (type != 'K' && !parse_pax(text_, extended)) {
            return fail(TarError::bad_extended, data);
        }
        return Step::member;
    }

    Bytes& bytes_;
    std::uint64_t at_, end_ = 0;
    Header header_;
    std::string text_;
};

void lower(std::string_view text, std::string& out) {
    out.assign(text);
    for (char& c : out)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
}

}  // namespace

bool split_tar_name(std::string_view name, std::string_view& key, std::string_view& suffix) {
    const std::string_view first = name.substr(0, name.find('/'));
    if (first.size() >= 4 && first.substr(0, 2) == "__" && first.substr(first.size() - 2) == "__") return false;
    const std::size_t slash = name.rfind('/');
    const std::size_t base = slash == std::string_view::npos ? 0 : slash + 1;
    const std::size_t dot = name.find('.', base);
    if (dot == std::string_view::npos) return false;
    if (dot == base) {
        // A hidden file: its folder is its key, unless that has a dot, too. This is WebDataset's rule.
        if (slash == std::string_view::npos) return false;
        const std::size_t before = slash == 0 ? std::string_view::npos : name.rfind('/', slash - 1);
        const std::size_t folder = before == std::string_view::npos ? 0 : before + 1;
        if (name.substr(folder, slash - folder).find('.') != std::string_view::npos) return false;
    }
    key = name.substr(0, dot);
    suffix = name.substr(dot + 1);
    return true;
}

std::uint64_t tar_key(std::string_view key) {
    const auto digit = [](char c) { return c >= '0' && c <= '9'; };
    if (!key.empty() && key.size() <= 19 && std::all_of(key.begin(), key.end(), digit)) {
        std::uint64_t number = 0;
        for (const char c : key) number = 10 * number + static_cast<std::uint64_t>(c - '0');
        return number;
    }
    // FNV-1a, and a finalizer that mixes all bits.
    std::uint64_t hash = 0xcbf29ce484222325U;
    for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    hash = (hash ^ hash >> 33) * 0xff51afd7ed558ccdU;
    hash = (hash ^ hash >> 33) * 0xc4ceb9fe1a85ec53U;
    return hash ^ hash >> 33;
}

void TarIndexer::end_sample(std::vector<TarEntry>& out) {
    if (!open_) return;
    open_ = false;
    end_ = std::min(end_, size_);
    if (end_ - begin_ > std::numeric_limits<std::uint32_t>::max()) {
        error_ = TarError::too_long;
        error_byte_ = begin_;
        done_ = true;
        return;
    }
    out.push_back({tar_key(key_), begin_, static_cast<std::uint32_t>(end_ - begin_), 1});
}

void TarIndexer::next(std::size_t members, std::vector<TarEntry>& out) {
    if (stream_) {
        StreamBytes bytes{*stream_};
        walk(bytes, members, out);
    } else {
        FileBytes bytes{descriptor_, size_, reach_, readable_};
        walk(bytes, members, out);
    }
}

template <class Bytes>
void TarIndexer::walk(Bytes& bytes, std::size_t members, std::vector<TarEntry>& out) {
    Walk<Bytes> walk(bytes, at_);
    Member member;
    for (std::size_t i = 0; i < members && !done_; ++i) {
        const Step step = walk.next(member);
        if (stream_) size_ = stream_->size();
        switch (step) {
            case Step::end:
                end_sample(out);
                done_ = true;
                break;
            case Step::fault:
                if (walk.error == TarError::cut) {
                    // A header that was cut is a sample without a key.
                    end_sample(out);
                    if (error_ == TarError::none) {
                        key_.clear();
                        begin_ = member.begin;
                        end_ = size_;
                        open_ = true;
                        end_sample(out);
                    }
                } else {
                    error_ = walk.error;
                    error_byte_ = walk.error_byte;
                    errno_ = bytes.error;
                }
                done_ = true;
                break;
            case Step::member: {
                std::string_view key, suffix;
                if (member.regular && split_tar_name(member.name, key, suffix)) {
                    if (!open_ || key != key_) {
                        end_sample(out);
                        if (done_) break;
                        key_.assign(key);
                        begin_ = member.begin;
                        open_ = true;
                    }
                    end_ = member.data + member.size;
                }
                if (!stream_ && member.size <= kDense && member.next + kAhead / 2 > advised_ && member.next < size_) {
                    const std::uint64_t from = std::max(advised_, member.next);
                    advised_ = from + kAhead;
                    begin_reading(descriptor_, from, kAhead);
                }
                break;
            }
        }
        at_ = std::min(walk.at(), size_);
    }
}

const void* find_tar_members(const std::uint8_t* memory, std::size_t size, const std::int64_t* begin,
                             const std::int64_t* sizes, std::size_t n, const std::vector<std::string>& fields,
                             std::int64_t* spans, std::vector<TarFault>& faults, std::string* keys,
                             std::int64_t* key_bounds) {
    MemoryBytes bytes{memory, size};
    Member member;
    std::string lowered;
    std::fill_n(spans, 2 * n * fields.size(), 0);
    if (key_bounds != nullptr) key_bounds[0] = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const auto from = static_cast<std::uint64_t>(begin[i]), to = from + static_cast<std::uint64_t>(sizes[i]);
        bytes.size = to;
        Walk<MemoryBytes> walk(bytes, from);
        TarFault fault{0, static_cast<std::int32_t>(i), -1, 0};
        const auto fail = [&](TarError code, std::uint64_t byte, std::int32_t f = -1) {
            fault.code = static_cast<std::int32_t>(code);
            fault.byte = static_cast<std::int64_t>(byte);
            fault.field = f;
        };
        bool any = false;
        while (fault.code == 0) {
            const Step step = walk.next(member);
            if (step == Step::end) break;
            if (step == Step::fault) {
                if (walk.error == TarError::io) return bytes.lost;
                fail(walk.error, walk.error_byte);
                break;
            }
            std::string_view key, suffix;
            if (!member.regular || !split_tar_name(member.name, key, suffix)) continue;
            if (!any && keys != nullptr) keys->append(key);
            any = true;
            if (member.data > to || member.size > to - member.data) {
                fail(TarError::cut, member.begin);
                break;
            }
            lower(suffix, lowered);
            for (std::size_t f = 0; f < fields.size(); ++f) {
                if (fields[f] != lowered) continue;
                std::int64_t* span = spans + 2 * (f * n + i);
                if (span[1] != 0) {
                    fail(TarError::repeated, member.begin, static_cast<std::int32_t>(f));
                    break;
                }
                span[0] = static_cast<std::int64_t>(member.data);
                span[1] = static_cast<std::int64_t>(member.data + member.size);
            }
        }
        for (std::size_t f = 0; f < fields.size() && fault.code == 0; ++f)
            // Data never begins at 0, so these spans have not been set.
            if (spans[2 * (f * n + i) + 1] == 0) fail(TarError::missing, from, static_cast<std::int32_t>(f));
        if (fault.code != 0) {
            for (std::size_t f = 0; f < fields.size(); ++f) std::fill_n(spans + 2 * (f * n + i), 2, 0);
            faults.push_back(fault);
        }
        if (key_bounds != nullptr) key_bounds[i + 1] = static_cast<std::int64_t>(keys->size());
    }
    return nullptr;
}

std::vector<TarSuffix> list_tar_members(const std::uint8_t* memory, std::size_t size) {
    std::vector<TarSuffix> suffixes;
    MemoryBytes bytes{memory, size};
    Walk<MemoryBytes> walk(bytes, 0);
    Member member;
    while (walk.next(member) == Step::member) {
        std::string_view key, suffix;
        if (!member.regular || !split_tar_name(member.name, key, suffix)) continue;
        const std::uint64_t end = std::min<std::uint64_t>(member.data + member.size, size);
        TarSuffix entry{{}, static_cast<std::int64_t>(std::min<std::uint64_t>(member.data, size)),
                        static_cast<std::int64_t>(end)};
        lower(suffix, entry.suffix);
        suffixes.push_back(std::move(entry));
    }
    return suffixes;
}

}  // namespace feedline
