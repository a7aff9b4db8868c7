#include "feedline/inflate.h"

#include <algorithm>
#include <cstring>

#include "swar.h"

namespace feedline {
namespace {

struct CrcTables {
    std::uint32_t t[8][256];
    CrcTables() {
        for (std::uint32_t i = 0; i < 256; ++i) {
            std::uint32_t c = i;
            for (int k = 0; k < 8; ++k) c = c & 1 ? 0xEDB88320u ^ c >> 1 : c >> 1;
            t[0][i] = c;
        }
        for (std::uint32_t i = 0; i < 256; ++i)
            for (int k = 1; k < 8; ++k) t[k][i] = t[0][t[k - 1][i] & 0xFF] ^ t[k - 1][i] >> 8;
    }
};

constexpr std::uint16_t kLengthBase[29] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                           31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
constexpr std::uint8_t kLengthExtra[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
constexpr std::uint16_t kDistanceBase[30] = {1,   2,   3,   4,   5,   7,    9,    13,   17,   25,   33,   49,   65,    97,    129,
                                             193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
constexpr std::uint8_t kDistanceExtra[30] = {0, 0, 0, 0, 1, 1, 2, 2,  3,  3,  4,  4,  5,  5,  6,
                                             6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13};
constexpr std::uint8_t kOrder[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};

// A dynamic block's header is shorter than this, and so is any symbol with its extra bits.
constexpr std::size_t kMaxHeader = 512;
constexpr std::size_t kMaxGzipHeader = 1 << 20;

unsigned reversed(unsigned code, unsigned length) {
    unsigned out = 0;
    for (unsigned i = 0; i < length; ++i) out = out << 1 | (code >> i & 1);
    return out;
}

}  // namespace

std::uint32_t crc32_update(std::uint32_t crc, const std::uint8_t* data, std::size_t n) {
    static const CrcTables tables;
    const auto& t = tables.t;
    crc = ~crc;
    for (; n >= 8; n -= 8, data += 8) {
        const std::uint64_t v = load64(data) ^ crc;
        crc = t[7][v & 0xFF] ^ t[6][v >> 8 & 0xFF] ^ t[5][v >> 16 & 0xFF] ^ t[4][v >> 24 & 0xFF] ^
              t[3][v >> 32 & 0xFF] ^ t[2][v >> 40 & 0xFF] ^ t[1][v >> 48 & 0xFF] ^ t[0][v >> 56];
    }
    for (; n > 0; --n, ++data) crc = t[0][(crc ^ *data) & 0xFF] ^ crc >> 8;
    return ~crc;
}

std::uint32_t adler32_update(std::uint32_t sum, const std::uint8_t* data, std::size_t n) {
    constexpr std::uint32_t kPrime = 65521;
    constexpr std::size_t kMaxBytes = 5552;  // bytes between divisions, so that the sums fit 32 bits
    std::uint32_t low = sum & 0xFFFF, high = sum >> 16;
    while (n > 0) {
        const std::size_t part = std::min(n, kMaxBytes);
        for (std::size_t i = 0; i < part; ++i) {
            low += data[i];
            high += low;
        }
        low %= kPrime;
        high %= kPrime;
        data += part;
        n -= part;
    }
    return high << 16 | low;
}

// Entries of `fast` are symbol << 4 | length, 0 where the code is longer than kBits or there is none. Symbols are below
// 288, so they fit. Longer codes are found by counting, one bit after the other.
bool Inflater::Codes::make(const std::uint8_t* lengths, unsigned n, bool may_be_one) {
    std::memset(count, 0, sizeof count);
    for (unsigned i = 0; i < n; ++i) ++count[lengths[i]];
    std::memset(fast, 0, sizeof fast);
    int unused = 1;  // codes of this length
    unsigned used = 0;
    for (unsigned length = 1; length < 16; ++length) {
        unused = unused * 2 - count[length];
        if (unused < 0) return false;
        used += count[length];
    }
    // Only a code of a single symbol, or of none, may be incomplete, and only one for distances.
    if (unused > 0 && !(may_be_one && (used == 0 || (used == 1 && count[1] == 1)))) return false;
    offset[1] = 0;
    for (unsigned length = 1; length < 15; ++length)
        offset[length + 1] = static_cast<std::uint16_t>(offset[length] + count[length]);
    std::uint16_t next[16];
    std::memcpy(next, offset, sizeof next);
    unsigned code = 0, first[16] = {};
    for (unsigned length = 1; length < 16; ++length) {
        code = (code + (length > 1 ? count[length - 1] : 0)) << 1;
        first[length] = code;
    }
    for (unsigned i = 0; i < n; ++i) {
        const unsigned length = lengths[i];
        if (length == 0) continue;
        symbol[next[length]++] = static_cast<std::uint16_t>(i);
        const unsigned assigned = first[length]++;
        if (length > kBits) continue;
        const auto entry = static_cast<std::uint16_t>(i << 4 | length);
        for (unsigned at = reversed(assigned, length); at < 1u << kBits; at += 1u << length) fast[at] = entry;
    }
    count[0] = 0;
    return true;
}

Inflater::Inflater(unsigned bits, std::uint8_t byte, bool zlib)
    : mode_(Mode::block),
      zlib_(zlib),
      any_(true),
      checked_(false),
      hold_(bits == 0 ? 0 : static_cast<std::uint64_t>(byte) >> (8 - bits)),
      count_(bits),
      reach_(kWindow) {}

void Inflater::refill() {
    if (end_ - in_ >= 8) {
        hold_ |= load64(in_) << count_;
        in_ += (63 - count_) >> 3;
        count_ |= 56;
        return;
    }
    while (count_ <= 56 && in_ < end_) {
        hold_ |= static_cast<std::uint64_t>(*in_++) << count_;
        count_ += 8;
    }
}

bool Inflater::need(unsigned bits) {
    if (count_ < bits) refill();
    return count_ >= bits;
}

std::uint32_t Inflater::take(unsigned bits) {
    const auto value = static_cast<std::uint32_t>(hold_ & ((std::uint64_t{1} << bits) - 1));
    hold_ >>= bits;
    count_ -= bits;
    return value;
}

// The next symbol, or -1 if there is no such code, or the input has ended.
int Inflater::symbol(const Codes& codes) {
    const unsigned entry = codes.fast[hold_ & ((1u << Codes::kBits) - 1)];
    if (__builtin_expect(entry != 0, 1)) {
        const unsigned length = entry & 15;
        if (length > count_) return -1;
        hold_ >>= length;
        count_ -= length;
        return static_cast<int>(entry >> 4);
    }
    int code = 0, first = 0;
    std::uint64_t bits = hold_;
    for (unsigned length = 1; length < 16; ++length, bits >>= 1) {
        if (length > count_) return -1;
        code |= static_cast<int>(bits & 1);
        const int n = codes.count[length];
        if (code - n < first) {
            hold_ >>= length;
            count_ -= length;
            return codes.symbol[codes.offset[length] + (code - first)];
        }
        first = (first + n) << 1;
        code <<= 1;
    }
    return -1;
}

bool Inflater::tables() {
    std::uint8_t lengths[320] = {};
    if (!need(14)) return bad("it was cut");
    const unsigned symbols = take(5) + 257, distances = take(5) + 1, code_lengths = take(4) + 4;
    if (symbols > 286 || distances > 30) return bad("a block of impossible codes");
    std::uint8_t small[19] = {};
    for (unsigned i = 0; i < code_lengths; ++i) {
        if (!need(3)) return bad("it was cut");
        small[kOrder[i]] = static_cast<std::uint8_t>(take(3));
    }
    if (!lengths_.make(small, 19, false)) return bad("a block of impossible codes");
    for (unsigned i = 0; i < symbols + distances;) {
        refill();
        const int s = symbol(lengths_);
        if (s < 0) return bad("a block of impossible codes");
        if (s < 16) {
            lengths[i++] = static_cast<std::uint8_t>(s);
            continue;
        }
        const unsigned extra = s == 16 ? 2 : s == 17 ? 3 : 7;
        if (!need(extra)) return bad("it was cut");
        const unsigned repeat = take(extra) + (s == 18 ? 11 : 3);
        if ((s == 16 && i == 0) || i + repeat > symbols + distances) return bad("a block of impossible codes");
        const std::uint8_t value = s == 16 ? lengths[i - 1] : 0;
        for (unsigned k = 0; k < repeat; ++k) lengths[i++] = value;
    }
    if (lengths[256] == 0 || !lengths_.make(lengths, symbols, true) ||
        !distances_.make(lengths + symbols, distances, true))
        return bad("a block of impossible codes");
    return true;
}

// Reads a member's header at in[at], and sets `at` to its end. Returns `more` if it continues after the input.
Inflater::Step Inflater::header(const std::uint8_t* in, std::size_t n, std::size_t& at, bool last) {
    const auto lack = [&] {
        if (!last && n - at < kMaxGzipHeader) return Step::more;
        bad("it was cut in a member's header");
        return Step::bad;
    };
    std::size_t p = at;
    if (n - p < (zlib_ ? 2u : 10u)) {
        if (n == p && last) return Step::more;
        return lack();
    }
    if (zlib_) {
        // Deflate, no dictionary, and both bytes together a multiple of 31.
        if ((in[p] & 0x0F) != 8 || in[p] > 0x78 || in[p + 1] & 0x20 || (in[p] << 8 | in[p + 1]) % 31 != 0) {
            bad("no zlib stream begins here");
            return Step::bad;
        }
        at = p + 2;
        return Step::done;
    }
    if (in[p] != 0x1F || in[p + 1] != 0x8B || in[p + 2] != 8 || in[p + 3] & 0xE0) {
        bad("no gzip member begins here");
        return Step::bad;
    }
    const unsigned flags = in[p + 3];
    p += 10;
    if (flags & 4) {
        if (n - p < 2) return lack();
        const std::size_t extra = in[p] | static_cast<std::size_t>(in[p + 1]) << 8;
        p += 2;
        if (n - p < extra) return lack();
        p += extra;
    }
    for (const unsigned text : {8u, 16u}) {  // a name, a comment
        if (!(flags & text)) continue;
        const void* zero = p < n ? std::memchr(in + p, 0, n - p) : nullptr;
        if (zero == nullptr) return lack();
        p = static_cast<std::size_t>(static_cast<const std::uint8_t*>(zero) - in) + 1;
    }
    if (flags & 2) {
        if (n - p < 2) return lack();
        p += 2;
    }
    at = p;
    return Step::done;
}

Inflater::Result Inflater::run(const std::uint8_t* in, std::size_t n, bool last, std::uint8_t* out,
                               std::size_t position, std::size_t room, std::size_t point_after) {
    in_ = in;
    end_ = in + n;
    std::size_t counted = position;  // output up to here is in the member's checksum
    const auto count = [&] {
        if (checked_) crc_ = (zlib_ ? adler32_update : crc32_update)(crc_, out + counted, position - counted);
        size_ += static_cast<std::uint32_t>(position - counted);
        reach_ = std::min<std::uint64_t>(reach_ + (position - counted), kWindow);
        counted = position;
    };
    const auto leave = [&](Status status, bool member = false) {
        count();
        // Unused bytes go back to the input.
        const auto back = static_cast<unsigned>(std::min<std::size_t>(count_ / 8, static_cast<std::size_t>(in_ - in)));
        in_ -= back;
        count_ -= 8 * back;
        hold_ = count_ == 0 ? 0 : hold_ & ((std::uint64_t{1} << count_) - 1);
        return Result{status, static_cast<std::size_t>(in_ - in), position, member};
    };
    const auto broken = [&](const char* problem) {
        problem_ = problem;
        return leave(Status::bad);
    };
    const auto scarce = [&] { return !last && static_cast<std::size_t>(end_ - in_) < kMaxHeader; };

    for (;;) {
        switch (mode_) {
            case Mode::header: {
                if (any_ && position >= point_after && end_ > in_) return leave(Status::point, true);
                auto at = static_cast<std::size_t>(in_ - in);
                if (at == n && last) {
                    if (!any_) return broken("an empty file");
                    return leave(Status::end);
                }
                if (any_ && at < n && in[at] == 0) {
                    mode_ = Mode::ended;  // padding of tapes and of some writers
                    continue;
                }
                const Step step = header(in, n, at, last);
                if (step == Step::bad) return leave(Status::bad);
                if (step == Step::more) return leave(Status::input);
                in_ = in + at;
                any_ = checked_ = true;
                crc_ = zlib_;
                size_ = 0;
                reach_ = 0;
                counted = position;
                final_ = false;
                mode_ = Mode::block;
                continue;
            }
            case Mode::ended: {
                while (in_ < end_ && *in_ == 0) ++in_;
                if (in_ < end_) return broken("neither a member nor zeros follow the last member");
                return leave(last ? Status::end : Status::input);
            }
            case Mode::block: {
                if (final_) {
                    mode_ = Mode::trailer;
                    continue;
                }
                if (scarce()) return leave(Status::input);
                if (position >= point_after) return leave(Status::point);
                if (!need(3)) return broken("it was cut");
                final_ = take(1) != 0;
                switch (take(2)) {
                    case 0: {
                        const unsigned skip = count_ % 8;
                        hold_ >>= skip;
                        count_ -= skip;
                        if (!need(32)) return broken("it was cut");
                        stored_ = take(16);
                        if ((stored_ ^ 0xFFFF) != take(16)) return broken("a stored block of impossible length");
                        // The block's bytes are copied from the input itself.
                        in_ -= count_ / 8;
                        count_ = 0;
                        hold_ = 0;
                        mode_ = Mode::stored;
                        break;
                    }
                    case 1: {
                        std::uint8_t lengths[288];
                        std::memset(lengths, 8, 144);
                        std::memset(lengths + 144, 9, 112);
                        std::memset(lengths + 256, 7, 24);
                        std::memset(lengths + 280, 8, 8);
                        lengths_.make(lengths, 288, false);
                        std::memset(lengths, 5, 32);
                        distances_.make(lengths, 32, false);
                        mode_ = Mode::codes;
                        break;
                    }
                    case 2:
                        if (!tables()) return leave(Status::bad);
                        mode_ = Mode::codes;
                        break;
                    default: return broken("a block of unknown type");
                }
                continue;
            }
            case Mode::stored: {
                const std::size_t part =
                    std::min({static_cast<std::size_t>(stored_), static_cast<std::size_t>(end_ - in_), room - position});
                if (part != 0) std::memcpy(out + position, in_, part);
                in_ += part;
                position += part;
                stored_ -= static_cast<std::uint32_t>(part);
                if (stored_ != 0) {
                    if (position == room) return leave(Status::output);
                    return last ? broken("it was cut") : leave(Status::input);
                }
                mode_ = Mode::block;
                continue;
            }
            case Mode::codes: {
                for (;;) {
                    if (scarce()) return leave(Status::input);
                    if (room - position < kSlack) return leave(Status::output);
                    refill();
                    int s = symbol(lengths_);
                    // Two symbols take at most 30 of 56 bits.
                    if (s >= 0 && s < 256) {
                        out[position++] = static_cast<std::uint8_t>(s);
                        s = symbol(lengths_);
                        if (s >= 0 && s < 256) {
                            out[position++] = static_cast<std::uint8_t>(s);
                            continue;
                        }
                        if (s < 0 && end_ == in_) return broken("it was cut");
                        refill();
                    }
                    if (s < 0) return broken(end_ == in_ ? "it was cut" : "an impossible code");
                    if (s == 256) break;
                    s -= 257;
                    if (s >= 29) return broken("an impossible code");
                    if (count_ < kLengthExtra[s]) return broken("it was cut");
                    const std::size_t length = kLengthBase[s] + take(kLengthExtra[s]);
                    refill();
                    const int d = symbol(distances_);
                    if (d < 0 || d >= 30) return broken(end_ == in_ ? "it was cut" : "an impossible code");
                    if (count_ < kDistanceExtra[d]) return broken("it was cut");
                    const std::size_t distance = kDistanceBase[d] + take(kDistanceExtra[d]);
                    if (distance > reach_ + (position - counted) || distance > position)
                        return broken("a copy of text before the beginning");
                    if (room - position < length) return broken("a copy that does not fit");  // never: kSlack
                    std::uint8_t* to = out + position;
                    const std::uint8_t* from = to - distance;
                    if (distance >= length) {
                        std::memcpy(to, from, length);
                    } else if (distance == 1) {
                        std::memset(to, *from, length);
                    } else {
                        for (std::size_t i = 0; i < length; ++i) to[i] = from[i];
                    }
                    position += length;
                }
                mode_ = Mode::block;
                continue;
            }
            case Mode::trailer: {
                if (scarce()) return leave(Status::input);
                const unsigned skip = count_ % 8;
                hold_ >>= skip;
                count_ -= skip;
                count();
                if (!need(32)) return broken("it was cut");
                const std::uint32_t crc = take(32);
                if (zlib_) {
                    if (checked_ && __builtin_bswap32(crc) != crc_)
                        return broken("a checksum that does not match the text");
                } else {
                    if (!need(32)) return broken("it was cut");
                    const std::uint32_t size = take(32);
                    if (checked_ && (crc != crc_ || size != size_))
                        return broken("a checksum that does not match the member");
                }
                in_ -= count_ / 8;
                count_ = 0;
                hold_ = 0;
                mode_ = zlib_ ? Mode::ended : Mode::header;
                continue;
            }
        }
    }
}

}  // namespace feedline
