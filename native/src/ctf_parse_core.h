// SPDX-License-Identifier: Apache-2.0
// The parser, included once by each variant. FEEDLINE_CTF_SSE selects 16-byte steps for numbers and skipping, with the
// same grammar. A sequence ends in a newline and every scan stops at one, so only loads, never decisions, reach into
// the 64 readable bytes around it.
#pragma once

#include <cstring>
#include <limits>

#include "ctf_parse_job.h"
#include "numbers.h"

#ifdef FEEDLINE_CTF_SSE
#include <smmintrin.h>
#endif

namespace feedline {
namespace {

FEEDLINE_INLINE bool is_blank(std::uint8_t c) { return c == ' ' || c == '\t'; }
// Control bytes and, as in CNTK, bytes from 0x80 on. They end a sample, and are ignored between samples.
FEEDLINE_INLINE bool is_control(std::uint8_t c) { return static_cast<std::int8_t>(c) < ' '; }
FEEDLINE_INLINE bool ends_token(std::uint8_t c) { return static_cast<std::int8_t>(c) <= ' ' || c == '|'; }
// The first byte after a run of digits.
FEEDLINE_INLINE const std::uint8_t* skip_digits(const std::uint8_t* p) {
    for (;;) {
        const unsigned n = leading_digits(minus_zeros(load64(p)));
        p += n;
        if (n < 8) return p;
    }
}

// The next '|' or newline at or after p.
FEEDLINE_INLINE const std::uint8_t* skip_to_next(const std::uint8_t* p) {
#ifdef FEEDLINE_CTF_SSE
    const __m128i pipe = _mm_set1_epi8('|'), newline = _mm_set1_epi8('\n');
    for (;; p += 16) {
        const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        const int hit = _mm_movemask_epi8(_mm_or_si128(_mm_cmpeq_epi8(v, pipe), _mm_cmpeq_epi8(v, newline)));
        if (hit) return p + __builtin_ctz(static_cast<unsigned>(hit));
    }
#else
    for (;; p += 8) {
        const std::uint64_t v = load64(p);
        const unsigned hit = equal_bits(v, '|') | equal_bits(v, '\n');
        if (hit) return p + __builtin_ctz(hit);
    }
#endif
}

FEEDLINE_INLINE bool is_word(const std::uint8_t* p, char a, char b, char c) {
    return (p[0] | 0x20) == a && (p[1] | 0x20) == b && (p[2] | 0x20) == c;
}

// Reads one number by the full grammar. Returns true with p at its end, or false with p at the wrong byte.
template <class Real, bool Lenient>
__attribute__((noinline)) bool number_by_grammar(const std::uint8_t*& p, Real& out) {
    const std::uint8_t* const start = p;
    const bool negative = *p == '-';
    if (negative || *p == '+') ++p;
    std::uint64_t m = 0;
    std::size_t integer = 0, fraction = 0;
    add_digits(p, m, integer);
    if (integer == 0) {
        if (!Lenient) return false;
        if (*p == '.' && is_digit(p[1])) {
            // continue with the fraction
        } else if (is_word(p, 'n', 'a', 'n') || is_word(p, 'i', 'n', 'f')) {
            const Real value = (*p | 0x20) == 'n' ? std::numeric_limits<Real>::quiet_NaN()
                                                  : std::numeric_limits<Real>::infinity();
            out = negative ? -value : value;
            p += 3;
            if (ends_token(*p)) return true;
            return false;
        } else {
            return false;
        }
    }
    bool point = false;
    if (*p == '.') {
        ++p;
        point = true;
        add_digits(p, m, fraction);
    }
    std::int64_t power = 0;
    if ((*p == 'e' || *p == 'E') && (Lenient || !point || fraction > 0)) {
        ++p;
        const bool down = *p == '-';
        if (down || *p == '+') ++p;
        if (!is_digit(*p)) return false;
        std::uint64_t e = 0;
        std::size_t digits = 0;
        const std::uint8_t* first = p;
        add_digits(p, e, digits);
        while (*first == '0' && first + 1 < p) ++first, --digits;
        if (digits > 9) e = 1000000000;  // far out of range: left to the exact path
        power = down ? -static_cast<std::int64_t>(e) : static_cast<std::int64_t>(e);
    }
    if (!ends_token(*p)) return false;
    power -= static_cast<std::int64_t>(fraction);
    if (integer + fraction <= 19 && m <= kExactIntegers && power >= -22 && power <= 22) {
        // Both operands are exact, so the one operation rounds correctly.
        double d = static_cast<double>(m);
        d = power < 0 ? d / kCtfPowersOfTen[-power] : d * kCtfPowersOfTen[power];
        if (narrows_safely(negative ? -d : d, out)) return true;
    }
    out = exact(start, p, Real{});
    return true;
}

#ifdef FEEDLINE_CTF_SSE

// [d][i]: the byte that moves to place i when the point at place d is removed by moving the bytes before it.
struct CloseGap {
    alignas(16) std::uint8_t from[17][16];
    constexpr CloseGap() : from{} {
        for (int d = 0; d < 17; ++d)
            for (int i = 0; i < 16; ++i)
                from[d][i] = static_cast<std::uint8_t>(d == 16 || i > d ? i : (i == 0 ? 0x80 : i - 1));
    }
};
constexpr CloseGap kCloseGap;

// Bytes [n .. n + 16) select the last n bytes of a vector.
alignas(32) constexpr std::uint8_t kLastBytes[32] = {
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};

// Ends of tokens, found for 64 bytes at a time.
struct TokenEnds {
    std::uintptr_t base = 0;
    std::uint64_t mask = 0;

    FEEDLINE_INLINE unsigned part(const std::uint8_t* p) {
        const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return static_cast<unsigned>(_mm_movemask_epi8(
            _mm_or_si128(_mm_cmplt_epi8(v, _mm_set1_epi8(0x21)), _mm_cmpeq_epi8(v, _mm_set1_epi8('|')))));
    }

    // The first end after p, which is no end itself, or null if the token is longer than 64 bytes.
    __attribute__((always_inline)) inline const std::uint8_t* next(const std::uint8_t* p) {
        const auto ahead = reinterpret_cast<std::uintptr_t>(p) - base;
        if (ahead < 64) {
            const std::uint64_t remaining = mask >> ahead;
            if (remaining != 0) return p + __builtin_ctzll(remaining);
        }
        base = reinterpret_cast<std::uintptr_t>(p);
        mask = std::uint64_t{part(p)} | std::uint64_t{part(p + 16)} << 16 | std::uint64_t{part(p + 32)} << 32 |
               std::uint64_t{part(p + 48)} << 48;
        return mask != 0 ? p + __builtin_ctzll(mask) : nullptr;
    }
};

// Reads up to 16 bytes [s, e) of digits with at most one point after the first, all at once. Sets `m` to the digits as
// an integer, and `fraction` to the number of digits after the point. Returns false for any other bytes.
FEEDLINE_INLINE bool read_digits(const std::uint8_t* s, const std::uint8_t* e, std::uint64_t& m,
                                 unsigned& fraction) {
    const auto length = static_cast<unsigned>(e - s);
    if (length - 1 > 15) return false;
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(e - 16));
    const unsigned points =
        static_cast<unsigned>(_mm_movemask_epi8(_mm_cmpeq_epi8(v, _mm_set1_epi8('.')))) >> (16 - length);
    const unsigned point = points ? static_cast<unsigned>(__builtin_ctz(points)) : length;
    if (point == 0) return false;
    const unsigned digits = length - (points != 0);
    fraction = digits - point;
    __m128i d = _mm_sub_epi8(v, _mm_set1_epi8('0'));
    d = _mm_shuffle_epi8(d, _mm_load_si128(reinterpret_cast<const __m128i*>(
                                kCloseGap.from[points ? 16 - length + point : 16])));
    d = _mm_and_si128(d, _mm_loadu_si128(reinterpret_cast<const __m128i*>(kLastBytes + digits)));
    if (!_mm_testz_si128(_mm_subs_epu8(d, _mm_set1_epi8(9)), _mm_set1_epi8(-1))) return false;
    const __m128i pairs = _mm_maddubs_epi16(
        d, _mm_setr_epi8(10, 1, 10, 1, 10, 1, 10, 1, 10, 1, 10, 1, 10, 1, 10, 1));
    const __m128i fours = _mm_madd_epi16(pairs, _mm_setr_epi16(100, 1, 100, 1, 100, 1, 100, 1));
    const __m128i packed = _mm_packus_epi32(fours, fours);
    const __m128i eights = _mm_madd_epi16(packed, _mm_setr_epi16(10000, 1, 10000, 1, 10000, 1, 10000, 1));
    const auto both = static_cast<std::uint64_t>(_mm_cvtsi128_si64(eights));
    m = (both & 0xFFFFFFFFu) * 100000000u + (both >> 32);
    return true;
}

// Signs are nearly random in most data, so this has no branch.
FEEDLINE_INLINE double with_sign(double value, bool negative) {
    std::uint64_t b;
    __builtin_memcpy(&b, &value, 8);
    b |= static_cast<std::uint64_t>(negative) << 63;
    __builtin_memcpy(&value, &b, 8);
    return value;
}

// Reads the number [s, e), without its sign, if it is short and exact this way. Otherwise returns false.
template <class Real>
FEEDLINE_INLINE bool short_number(const std::uint8_t* s, const std::uint8_t* e, bool negative, Real& out) {
    std::uint64_t m;
    unsigned fraction;
    if (__builtin_expect(read_digits(s, e, m, fraction), 1)) {
        if (m > kExactIntegers) return false;
        const double value = static_cast<double>(static_cast<std::int64_t>(m)) / kCtfPowersOfTen[fraction];
        return narrows_safely(with_sign(value, negative), out);
    }
    // digits e [sign] one or two digits
    const std::uint8_t* last = e - 1;
    if (last - s < 2 || !is_digit(*last)) return false;
    int power = *last - '0';
    --last;
    if (is_digit(*last)) power += 10 * (*last-- - '0');
    const bool down = *last == '-';
    last -= down || *last == '+';
    if (last <= s || (*last | 0x20) != 'e' || !read_digits(s, last, m, fraction)) return false;
    if (fraction == 0 && last[-1] == '.') return false;  // number_by_grammar handles "5.e3"
    power = (down ? -power : power) - static_cast<int>(fraction);
    if (m > kExactIntegers || power < -22 || power > 22) return false;
    double value = static_cast<double>(static_cast<std::int64_t>(m));
    value = power < 0 ? value / kCtfPowersOfTen[-power] : value * kCtfPowersOfTen[power];
    return narrows_safely(with_sign(value, negative), out);
}

#endif

template <bool Lenient>
struct Machine {
    CtfParseJob& job;
    std::size_t sequence = 0;
    CtfEntry entry{};  // of the sequence
    const std::uint8_t* local = nullptr;  // the sequence, or a copy of it
    std::uint64_t local_offset = 0;       // its place in the file
    std::int64_t strict;
    bool stop = false;
#ifdef FEEDLINE_CTF_SSE
    TokenEnds ends;
#endif

    explicit Machine(CtfParseJob& j) : job(j), strict(j.allowed < 0) {}

    std::uint64_t offset(const std::uint8_t* p) const {
        return local_offset + static_cast<std::uint64_t>(p - local);
    }

    // Records an error of this sequence. Returns true if it is allowed, and the row continues.
    __attribute__((noinline, cold)) bool tolerate(CtfError code, int stream, const std::uint8_t* at,
                                                  std::int64_t expected, std::int64_t got) {
        job.record(code, stream, offset(at), expected, got, sequence);
        if (strict) return false;
        if (job.allowed == 0) {
            job.record(CtfError::errors_exhausted, stream, offset(at), 0, 0, sequence);
            stop = true;
            return false;
        }
        --job.allowed;
        return true;
    }

    __attribute__((noinline, cold)) bool end_all(CtfError code, int stream, const std::uint8_t* at,
                                                 std::int64_t expected, std::int64_t got) {
        job.record(code, stream, offset(at), expected, got, sequence);
        stop = true;
        return false;
    }

    FEEDLINE_INLINE bool pay(CtfParseJob& j, std::uint64_t bytes) {
        j.used += bytes;
        return j.used <= j.memory_limit;
    }

    bool out_of_memory(int stream, const std::uint8_t* at) {
        return end_all(CtfError::memory_limit, stream, at, static_cast<std::int64_t>(job.memory_limit),
                       static_cast<std::int64_t>(job.used));
    }

    // Reads one number, as number_by_grammar does. p is at its first byte, which is not the end of a token.
    template <class Real>
    __attribute__((always_inline)) inline bool number(const std::uint8_t*& p, Real& out) {
#ifdef FEEDLINE_CTF_SSE
        if (const std::uint8_t* e = ends.next(p)) {
            const bool negative = *p == '-';
            if (short_number(p + (negative | (*p == '+')), e, negative, out)) {
                p = e;
                return true;
            }
        }
#endif
        return number_by_grammar<Real, Lenient>(p, out);
    }

    // Reads the values after a name. Returns 1 for a sample, 0 for an allowed error, -1 if the sequence is bad.
    template <class Real>
    int dense(const std::uint8_t*& p, const std::uint8_t* pipe, int stream) {
        CtfColumn& column = job.columns[stream];
        const std::int64_t dim = job.fields[stream].dim;
        const std::uint64_t bytes = static_cast<std::uint64_t>(dim) * sizeof(Real);
        if (!pay(job, bytes)) {
            out_of_memory(stream, pipe);
            return -1;
        }
        if (column.values.capacity - column.values.size < bytes) column.values.grow(bytes);
        Real* const out = reinterpret_cast<Real*>(column.values.data + column.values.size);
        Real surplus;
        std::int64_t k = 0;
        const std::uint8_t* q = p;
        for (;;) {
            const std::uint8_t c = *q;
            const unsigned d = static_cast<unsigned>(c) - '0';
            if (k < dim) {
                // Integers of one to three digits followed by one blank, and runs of zeros. The branches are on lengths
                // first, which are more predictable than the first byte.
                const unsigned d1 = static_cast<unsigned>(q[1]) - '0', d2 = static_cast<unsigned>(q[2]) - '0';
                if (q[1] == ' ') {
#ifdef FEEDLINE_CTF_SSE
                    if (d == 0 && k + 8 <= dim) {
                        const __m128i zeros = _mm_set1_epi16('0' | ' ' << 8);
                        const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
                        if (_mm_movemask_epi8(_mm_cmpeq_epi8(v, zeros)) == 0xFFFF) {
                            std::memset(out + k, 0, 8 * sizeof(Real));
                            q += 16;
                            k += 8;
                            continue;
                        }
                    }
#endif
                    if (d <= 9) {
                        out[k++] = static_cast<Real>(static_cast<int>(d));
                        q += 2;
                        continue;
                    }
                } else if (q[2] == ' ') {
                    if ((d <= 9) & (d1 <= 9)) {
                        out[k++] = static_cast<Real>(static_cast<int>(10 * d + d1));
                        q += 3;
                        continue;
                    }
                } else if (q[3] == ' ') {
                    if ((d <= 9) & (d1 <= 9) & (d2 <= 9)) {
                        out[k++] = static_cast<Real>(static_cast<int>(100 * d + 10 * d1 + d2));
                        q += 4;
                        continue;
                    }
                }
            }
            if (ends_token(c)) {
                if (!is_blank(c)) break;
                ++q;
                continue;
            }
            if (!number(q, k < dim ? out[k] : surplus)) {
                job.used -= bytes;
                p = q;
                return tolerate(CtfError::bad_number, stream, q, 0, *q) ? 0 : -1;
            }
            ++k;
            q += *q == ' ';
        }
        p = q;
        if (k > dim) {
            job.used -= bytes;
            return tolerate(CtfError::too_many_values, stream, pipe, dim, k) ? 0 : -1;
        }
        if (k < dim) {
            const CtfFill fill = job.fields[stream].fill;
            if (fill == CtfFill::none) {
                job.used -= bytes;
                return tolerate(CtfError::too_few_values, stream, pipe, dim, k) ? 0 : -1;
            }
            if (fill == CtfFill::optional && !miss(column, static_cast<std::int64_t>(column.samples) * dim + k, dim - k)) {
                out_of_memory(stream, pipe);
                return -1;
            }
            std::memset(out + k, 0, static_cast<std::size_t>(dim - k) * sizeof(Real));
        }
        column.values.size += bytes;
        ++column.samples;
        return 1;
    }

    template <class Real>
    int sparse(const std::uint8_t*& p, const std::uint8_t* pipe, int stream) {
        CtfColumn& column = job.columns[stream];
        const auto dim = static_cast<std::uint64_t>(job.fields[stream].dim);
        const std::uint64_t used_before = job.used;
        const std::size_t indices_before = column.indices.size, values_before = column.values.size;
        const auto drop = [&] {
            job.used = used_before;
            column.indices.size = indices_before;
            column.values.size = values_before;
        };
        const auto bad = [&](CtfError code, const std::uint8_t* at, std::int64_t expected, std::int64_t got) {
            drop();
            return tolerate(code, stream, at, expected, got) ? 0 : -1;
        };
        if (!pay(job, sizeof(std::int64_t))) {
            out_of_memory(stream, pipe);
            return -1;
        }
        for (;;) {
            const std::uint8_t c = *p;
            if (is_blank(c)) {
                ++p;
                continue;
            }
            if (c == '|' || is_control(c)) break;
            constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
            const std::uint8_t* const token = p;
            std::uint64_t d = minus_zeros(load64(p));
            unsigned n = leading_digits(d);
            if (n == 0) return bad(CtfError::bad_index, p, 0, c);
            std::uint64_t index = digits_value(d, n);
            p += n;
            while (n == 8) {  // longer than any valid index, except for leading zeros
                d = minus_zeros(load64(p));
                n = leading_digits(d);
                if (n == 0) break;
                for (unsigned i = 0; i < n; ++i) {
                    const std::uint64_t digit = p[i] - '0';
                    index = index > (kLargest - digit) / 10 ? kLargest : index * 10 + digit;
                }
                p += n;
            }
            if (index >= dim)
                return bad(CtfError::index_too_large, token, static_cast<std::int64_t>(dim),
                           static_cast<std::int64_t>(index));
            if (*p != ':') return bad(CtfError::no_colon, p, 0, *p);
            ++p;
            Real value;
            if (is_digit(*p) && ends_token(p[1])) {
                value = static_cast<Real>(*p - '0');
                ++p;
            } else if (ends_token(*p) || !number(p, value)) {
                return bad(CtfError::bad_number, p, 0, *p);
            }
            if (!pay(job, sizeof(std::int32_t) + sizeof(Real))) {
                out_of_memory(stream, pipe);
                drop();
                return -1;
            }
            if (column.indices.capacity - column.indices.size < sizeof(std::int32_t))
                column.indices.grow(sizeof(std::int32_t));
            if (column.values.capacity - column.values.size < sizeof(Real)) column.values.grow(sizeof(Real));
            *reinterpret_cast<std::int32_t*>(column.indices.data + column.indices.size) =
                static_cast<std::int32_t>(index);
            *reinterpret_cast<Real*>(column.values.data + column.values.size) = value;
            column.indices.size += sizeof(std::int32_t);
            column.values.size += sizeof(Real);
        }
        end_sparse(column);
        return 1;
    }

    FEEDLINE_INLINE void end_sparse(CtfColumn& column) {
        if (column.indptr.capacity - column.indptr.size < sizeof(std::int64_t))
            column.indptr.grow(sizeof(std::int64_t));
        *reinterpret_cast<std::int64_t*>(column.indptr.data + column.indptr.size) =
            static_cast<std::int64_t>(column.indices.size / sizeof(std::int32_t));
        column.indptr.size += sizeof(std::int64_t);
        ++column.samples;
    }

    // Marks `count` values from `first` on as missing. Returns false if that takes too much memory.
    __attribute__((noinline, cold)) bool miss(CtfColumn& column, std::int64_t first, std::int64_t count) {
        const std::int64_t run[] = {first, count};
        if (!pay(job, sizeof run)) return false;
        column.missing.grow(sizeof run);
        std::memcpy(column.missing.data + column.missing.size, run, sizeof run);
        column.missing.size += sizeof run;
        return true;
    }

    // Adds a missing sample to an optional stream. Returns false if that takes too much memory.
    __attribute__((noinline, cold)) bool add_missing(int stream) {
        CtfColumn& column = job.columns[stream];
        const CtfField& field = job.fields[stream];
        const auto samples = static_cast<std::int64_t>(column.samples);
        if (field.sparse) {
            if (!pay(job, sizeof(std::int64_t)) || !miss(column, samples, 1)) return false;
            end_sparse(column);
            return true;
        }
        const std::uint64_t bytes =
            static_cast<std::uint64_t>(field.dim) * (field.float64 ? sizeof(double) : sizeof(float));
        if (!pay(job, bytes) || !miss(column, samples * field.dim, field.dim)) return false;
        if (column.values.capacity - column.values.size < bytes) column.values.grow(bytes);
        std::memset(column.values.data + column.values.size, 0, bytes);
        column.values.size += bytes;
        ++column.samples;
        return true;
    }

    FEEDLINE_INLINE bool is_name(const std::uint8_t* p, const CtfName& name) {
        if ((load64(p) ^ name.head) & name.head_mask) return false;
        for (std::size_t i = 8; i < name.length; ++i)
            if (p[i] != name.bytes[i]) return false;
        const std::uint8_t c = p[name.length];
        return ends_token(c);
    }

    // Parses the rows of one sequence, [p, end), which ends in a newline. own_newline: whether it is in the file.
    bool rows(const std::uint8_t* p, const std::uint8_t* end, bool own_newline) {
        int expected = 0;  // rows tend to name the streams in the same order
        while (p < end) {
            const std::uint8_t* const row = p;
            p = skip_digits(p);
            bool sampled = false;
            for (;;) {
                const std::uint8_t c = *p;
                if (c == '\n') {
                    ++p;
                    break;
                }
                if (c != '|') {
                    if (ends_token(c)) {
                        ++p;
                        continue;
                    }
                    if (!tolerate(CtfError::unexpected_byte, -1, p, '|', c)) return false;
                    p = skip_to_next(p);
                    continue;
                }
                const std::uint8_t* const pipe = p++;
                int stream = -1;
                for (int i = 0, at = expected; i < job.streams; ++i) {
                    if (is_name(p, job.names[at])) {
                        stream = at;
                        break;
                    }
                    if (++at == job.streams) at = 0;
                }
                if (stream < 0) {
                    // A comment or an undeclared stream, unless it is no name.
                    if (ends_token(*p) && !tolerate(CtfError::bad_name, -1, p, 0, *p)) return false;
                    p = skip_to_next(p);
                    continue;
                }
                expected = stream + 1 == job.streams ? 0 : stream + 1;
                p += job.names[stream].length;
                const CtfField& field = job.fields[stream];
                const int result =
                    field.sparse ? (field.float64 ? sparse<double>(p, pipe, stream) : sparse<float>(p, pipe, stream))
                                 : (field.float64 ? dense<double>(p, pipe, stream) : dense<float>(p, pipe, stream));
                if (result > 0) {
                    sampled = true;
                } else {
                    if (result < 0) return false;
                    p = skip_to_next(p);
                }
            }
            if (!sampled) {
                if (blank(row, p) ? Lenient : job.optional && strict) continue;
                // CNTK does not count a last row without a newline.
                if ((strict || p < end || own_newline) && !tolerate(CtfError::empty_row, -1, row, 1, 0)) return false;
            }
        }
        return true;
    }

    static bool blank(const std::uint8_t* p, const std::uint8_t* end) {
        for (; p < end; ++p)
            if (*p > ' ') return false;
        return true;
    }

    // Checks the number of samples of each stream by the index.
    bool lengths() {
        const std::int64_t indexed = entry.samples;
        std::int64_t longest = 0;
        int longer = -1;
        for (int s = 0; s < job.streams; ++s) {
            std::int64_t samples = static_cast<std::int64_t>(job.columns[s].samples) - job.offsets[s][sequence];
            if (samples == 0 && strict && job.fields[s].fill == CtfFill::optional) {
                if (!add_missing(s)) return out_of_memory(s, local);
                samples = 1;
            }
            if (samples == 0) {
                // Never allowed, as delivered sequences have all streams.
                if (strict) return tolerate(CtfError::missing_stream, s, local, 1, 0);
                return end_all(CtfError::missing_stream, s, local, 1, 0);
            }
            if (samples > indexed && longer < 0) longer = s;
            longest = samples > longest ? samples : longest;
        }
        if (job.size_stream >= 0) {
            // CNTK does not compare these. In strict mode they must agree, as the index determines how far the sequence
            // moves the clock.
            if (!strict) return true;
            const int s = job.size_stream;
            const std::int64_t samples =
                static_cast<std::int64_t>(job.columns[s].samples) - job.offsets[s][sequence];
            return samples == indexed || tolerate(CtfError::size_mismatch, s, local, indexed, samples);
        }
        if (longer >= 0) {
            const std::int64_t samples =
                static_cast<std::int64_t>(job.columns[longer].samples) - job.offsets[longer][sequence];
            return tolerate(CtfError::too_many_samples, longer, local, indexed, samples);
        }
        if (longest < indexed) return tolerate(CtfError::too_few_samples, -1, local, indexed, longest);
        return true;
    }

    void forget(std::uint64_t used_before) {
        job.used = used_before;
        for (int s = 0; s < job.streams; ++s) {
            CtfColumn& column = job.columns[s];
            column.samples = static_cast<std::uint64_t>(job.offsets[s][sequence]);
            column.missing.size = job.missing_before[static_cast<std::size_t>(s)];
            const CtfField& field = job.fields[s];
            const std::size_t real = field.float64 ? sizeof(double) : sizeof(float);
            if (field.sparse) {
                column.indptr.size = (column.samples + 1) * sizeof(std::int64_t);
                std::int64_t nnz;
                std::memcpy(&nnz, column.indptr.data + column.samples * sizeof(std::int64_t), sizeof nnz);
                column.indices.size = static_cast<std::size_t>(nnz) * sizeof(std::int32_t);
                column.values.size = static_cast<std::size_t>(nnz) * real;
            } else {
                column.values.size = column.samples * static_cast<std::uint64_t>(field.dim) * real;
            }
        }
    }

    void run() {
        for (; sequence < job.n; ++sequence) {
            bool good = !stop;
            if (good) {
                const std::uint64_t used_before = job.used;
                for (int s = 0; s < job.streams; ++s)
                    job.missing_before[static_cast<std::size_t>(s)] = job.columns[s].missing.size;
                std::memcpy(&entry, job.entries + sequence, sizeof entry);
                const std::size_t length = entry.size;
                const std::uint64_t begin = entry.offset - job.origin;  // huge if it is before the text
                if (begin > job.bytes || length > job.bytes - begin) {
                    job.outside = true;
                    return;
                }
                const std::uint8_t* p = job.text + begin;
                local_offset = entry.offset;
                const bool own_newline = length > 0 && p[length - 1] == '\n';
                const std::uint8_t* end = p + length;
                if (length > 0 && !own_newline) {
                    p = job.with_newline(p, length);
                    end = p + length + 1;
#ifdef FEEDLINE_CTF_SSE
                    ends = TokenEnds{};  // its cache may be of another text at these addresses
#endif
                }
                local = p;
                good = rows(p, end, own_newline) && lengths();
                if (!good) forget(used_before);
            }
            job.valid[sequence] = good;
            for (int s = 0; s < job.streams; ++s)
                job.offsets[s][sequence + 1] = static_cast<std::int64_t>(job.columns[s].samples);
        }
    }
};

FEEDLINE_INLINE void run_job(CtfParseJob& job) {
    if (job.lenient) {
        Machine<true>(job).run();
    } else {
        Machine<false>(job).run();
    }
}

}  // namespace
}  // namespace feedline
