#include <algorithm>
#include <utility>

#include "feedline/gather.h"
#include "numbers.h"
#include "rows_core.h"

namespace feedline {
namespace {

bool is_blank(std::uint8_t c) { return c == ' ' || c == '\t'; }

// Whether [s, e) is `word`, whatever its case.
bool is_word(const std::uint8_t* s, const std::uint8_t* e, const char* word) {
    for (; s < e; ++s, ++word)
        if (*word == 0 || (*s | 0x20) != *word) return false;
    return *word == 0;
}

struct Machine {
    const std::vector<RowField>& fields;
    const std::vector<CsvTarget>& columns;
    const std::uint8_t delimiter;
    RowSink& sink;
    RowFault fault;
    std::vector<std::uint8_t*> samples;  // of this row, by stream
    std::vector<std::uint8_t> scratch;
    const std::uint8_t* p = nullptr;
    const std::uint8_t* end = nullptr;

    Machine(const std::vector<RowField>& f, const std::vector<CsvTarget>& c, std::uint8_t d, RowSink& s)
        : fields(f), columns(c), delimiter(d), sink(s), samples(f.size()) {}

    bool fail(RowError code, const std::uint8_t* at, int stream, std::int64_t expected, std::int64_t got) {
        fault = {code, at, stream, expected, got};
        return false;
    }
    bool out_of_memory(int stream) {
        return fail(RowError::memory_limit, p, stream, static_cast<std::int64_t>(sink.limit()),
                    static_cast<std::int64_t>(sink.used()));
    }

    bool row(const std::uint8_t* begin, const std::uint8_t* newline_end) {
        p = begin;
        end = newline_end - 1;
        if (end > p && end[-1] == '\r') --end;
        for (std::size_t s = 0; s < fields.size(); ++s) {
            if (is_string(fields[s].type)) continue;
            samples[s] = sink.sample(s);
            if (samples[s] == nullptr) return out_of_memory(static_cast<int>(s));
        }
        std::size_t column = 0;
        for (;; ++column) {
            if (column == columns.size())
                return fail(RowError::too_many_cells, p, -1, static_cast<std::int64_t>(columns.size()), count(column));
            if (!cell(column)) return false;
            if (p == end) break;
            ++p;  // the delimiter
        }
        if (column + 1 < columns.size())
            return fail(RowError::too_few_cells, begin, -1, static_cast<std::int64_t>(columns.size()),
                        static_cast<std::int64_t>(column + 1));
        return true;
    }

    // The number of cells of the row. `column`: the number of the cell at p.
    std::int64_t count(std::size_t column) {
        const CsvTarget none{-1, 0};
        for (;; ++column, ++p) {
            if (!any_cell(none, column)) break;
            if (p == end) break;
        }
        return static_cast<std::int64_t>(column + 1);
    }

    bool cell(std::size_t column) {
        const CsvTarget& target = columns[column];
        if (target.stream >= 0 && *p != '"') {
            const std::uint8_t* q = p;
            switch (fields[target.stream].type) {
                case RowType::float32: if (fast<float>(target, q)) return true; break;
                case RowType::float64: if (fast<double>(target, q)) return true; break;
                case RowType::int32: if (fast<std::int32_t>(target, q)) return true; break;
                case RowType::int64: if (fast<std::int64_t>(target, q)) return true; break;
                default: break;
            }
        }
        return any_cell(target, column);
    }

    template <class T>
    __attribute__((always_inline)) inline bool fast(const CsvTarget& target, const std::uint8_t* q) {
        T& out = reinterpret_cast<T*>(samples[target.stream])[target.place];
        if (!number(q, out) || (q != end && *q != delimiter) || q > end) return false;
        p = q;
        return true;
    }

    // Reads a cell. Leaves p at the delimiter or the end.
    bool any_cell(const CsvTarget& target, std::size_t column) {
        const std::uint8_t *s = p, *e;
        const std::uint8_t* const at = p;
        if (p < end && *p == '"') {
            const std::uint8_t* q = ++s;
            for (;;) {
                q = find(q, end, '"');
                if (q == end) return fail(RowError::open_quote, at, target.stream, static_cast<std::int64_t>(column), 0);
                if (q + 1 < end && q[1] == '"') {
                    q += 2;
                    continue;
                }
                break;
            }
            e = q;
            p = find(q + 1, end, delimiter);
            if (!ends_no_line(target, q + 1, at, column)) return false;
            if (target.stream >= 0 && (p != q + 1 || find(s, e, '"') != e)) {
                // Two quotes are one, and the text after the closing quote belongs to the cell.
                scratch.clear();
                for (const std::uint8_t* c = s; c < e; ++c) {
                    scratch.push_back(*c);
                    if (*c == '"') ++c;
                }
                scratch.insert(scratch.end(), q + 1, p);
                const std::size_t size = scratch.size();
                scratch.resize(size + kRowPad, 0);
                s = scratch.data();
                e = s + size;
            }
        } else {
            p = e = find(p, end, delimiter);
            if (!ends_no_line(target, s, at, column)) return false;
        }
        return target.stream < 0 || value(target, s, e, at, column);
    }

    // Whether [s, p), outside quotes, has no carriage return, which ends a line for other programs: as a part of a text
    // it would join two rows. A number never has one.
    bool ends_no_line(const CsvTarget& target, const std::uint8_t* s, const std::uint8_t* at, std::size_t column) {
        if (target.stream < 0 || !is_string(fields[target.stream].type) || find(s, p, '\r') == p) return true;
        return fail(RowError::cell_return, at, target.stream, static_cast<std::int64_t>(column), 0);
    }

    static const std::uint8_t* find(const std::uint8_t* from, const std::uint8_t* to, std::uint8_t c) {
        if (from >= to) return to;
        const void* hit = std::memchr(from, c, static_cast<std::size_t>(to - from));
        return hit == nullptr ? to : static_cast<const std::uint8_t*>(hit);
    }

    bool value(const CsvTarget& target, const std::uint8_t* s, const std::uint8_t* e, const std::uint8_t* at,
               std::size_t column) {
        const RowType type = fields[target.stream].type;
        const auto where = static_cast<std::int64_t>(column);
        if (is_string(type)) {
            const auto n = static_cast<std::size_t>(e - s);
            if (type == RowType::text) {
                const std::size_t bad = first_bad_utf8(reinterpret_cast<const std::byte*>(s), n);
                if (bad < n) return fail(RowError::cell_text, at, target.stream, where, s[bad]);
            }
            const auto stream = static_cast<std::size_t>(target.stream);
            if (n == 0 && *at != '"' && fields[target.stream].optional)
                return sink.absent(stream) || out_of_memory(target.stream);
            return (sink.append(stream, s, n) && sink.end_string(stream)) || out_of_memory(target.stream);
        }
        while (s < e && is_blank(*s)) ++s;
        while (s < e && is_blank(e[-1])) --e;
        if (s == e) {
            if (!fields[target.stream].optional) return fail(RowError::empty_cell, at, target.stream, where, 0);
            const std::size_t item = row_item(type);
            std::memset(samples[target.stream] + static_cast<std::size_t>(target.place) * item, 0, item);
            return sink.miss(static_cast<std::size_t>(target.stream), static_cast<std::uint64_t>(target.place), 1) ||
                   out_of_memory(target.stream);
        }
        RowError error = RowError::bad_cell;
        bool good = false;
        switch (type) {
            case RowType::boolean: good = boolean(target, s, e); break;
            case RowType::int8: good = integer<std::int8_t>(target, s, e, error); break;
            case RowType::int16: good = integer<std::int16_t>(target, s, e, error); break;
            case RowType::int32: good = integer<std::int32_t>(target, s, e, error); break;
            case RowType::int64: good = integer<std::int64_t>(target, s, e, error); break;
            case RowType::uint8: good = integer<std::uint8_t>(target, s, e, error); break;
            case RowType::uint16: good = integer<std::uint16_t>(target, s, e, error); break;
            case RowType::uint32: good = integer<std::uint32_t>(target, s, e, error); break;
            case RowType::uint64: good = integer<std::uint64_t>(target, s, e, error); break;
            case RowType::float32: good = real<float>(target, s, e); break;
            case RowType::float64: good = real<double>(target, s, e); break;
            default: break;
        }
        return good || fail(error, at, target.stream, where, *s);
    }

    bool boolean(const CsvTarget& target, const std::uint8_t* s, const std::uint8_t* e) {
        const bool is_true = is_word(s, e, "true") || (e - s == 1 && *s == '1');
        if (!is_true && !is_word(s, e, "false") && !(e - s == 1 && *s == '0')) return false;
        samples[target.stream][target.place] = is_true;
        return true;
    }

    template <class T>
    bool integer(const CsvTarget& target, const std::uint8_t* s, const std::uint8_t* e, RowError& error) {
        T& out = reinterpret_cast<T*>(samples[target.stream])[target.place];
        const auto* a = reinterpret_cast<const char*>(s);
        const auto* b = reinterpret_cast<const char*>(e);
        if (*a == '+') ++a;
        const char* const digits = a + (a < b && a == reinterpret_cast<const char*>(s) && *a == '-');
        for (const char* c = digits; c < b; ++c)
            if (!is_digit(static_cast<std::uint8_t>(*c))) return false;
        if (digits == b) return false;
        if (std::is_unsigned_v<T> && digits != a && std::all_of(digits, b, [](char c) { return c == '0'; })) {
            out = 0;  // -0
            return true;
        }
        if (std::from_chars(a, b, out).ec == std::errc()) return true;
        error = RowError::cell_range;
        return false;
    }

    template <class T>
    bool real(const CsvTarget& target, const std::uint8_t* s, const std::uint8_t* e) {
        T& out = reinterpret_cast<T*>(samples[target.stream])[target.place];
        const std::uint8_t* q = s;
        if (number(q, out) && q == e) return true;
        const bool negative = *s == '-';
        if (negative || *s == '+') ++s;
        if (is_word(s, e, "nan")) {
            out = std::numeric_limits<T>::quiet_NaN();
        } else if (is_word(s, e, "inf") || is_word(s, e, "infinity")) {
            out = negative ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::infinity();
        } else {
            return false;
        }
        return true;
    }

    // Reads a number at q, and sets q to its end. Returns false if there is none.
    template <class T>
    __attribute__((always_inline)) inline bool number(const std::uint8_t*& q, T& out) {
        const std::uint8_t* const start = q;
        const bool negative = *q == '-';
        if (negative || *q == '+') ++q;
        std::uint64_t m = 0;
        std::size_t before = 0, fraction = 0;
        add_digits(q, m, before);
        if constexpr (std::is_integral_v<T>) {
            if (before == 0 || before >= 19) return false;  // the general parser reports the fault
            const auto v = negative ? -static_cast<std::int64_t>(m) : static_cast<std::int64_t>(m);
            if (v < std::numeric_limits<T>::min() || v > std::numeric_limits<T>::max()) return false;
            out = static_cast<T>(v);
            return true;
        } else {
            if (*q == '.') {
                ++q;
                add_digits(q, m, fraction);
            }
            if (before + fraction == 0) return false;
            std::int64_t power = 0;
            if ((*q | 0x20) == 'e') {
                ++q;
                const bool down = *q == '-';
                if (down || *q == '+') ++q;
                std::uint64_t e = 0;
                std::size_t count = 0;
                const std::uint8_t* const from = q;
                add_digits(q, e, count);
                if (count == 0) return false;
                for (const std::uint8_t* zero = from; *zero == '0' && count > 1; ++zero) --count;
                if (count > 9) e = 1000000000;
                power = down ? -static_cast<std::int64_t>(e) : static_cast<std::int64_t>(e);
            }
            power -= static_cast<std::int64_t>(fraction);
            if (before + fraction <= 19 && m <= kExactIntegers && power >= -22 && power <= 22) {
                double v = static_cast<double>(m);
                v = power < 0 ? v / kCtfPowersOfTen[-power] : v * kCtfPowersOfTen[power];
                if (narrows_safely(negative ? -v : v, out)) return true;
            }
            out = exact(start, q, T{});
            return true;
        }
    }
};

}  // namespace

CsvParser::CsvParser(std::vector<RowField> fields, std::vector<CsvTarget> columns, std::uint8_t delimiter,
                     std::uint64_t memory_limit)
    : fields_(std::move(fields)), columns_(std::move(columns)), delimiter_(delimiter), memory_limit_(memory_limit) {}

RowColumns CsvParser::parse(const Rows& rows) const {
    RowSink sink(fields_, rows.n, memory_limit_);
    Machine machine(fields_, columns_, delimiter_, sink);
    return parse_rows(machine, sink, rows);
}

}  // namespace feedline
