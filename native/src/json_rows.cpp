#include <unordered_map>
#include <utility>

#include "feedline/gather.h"
#include "numbers.h"
#include "rows_core.h"

namespace feedline {

// The keys of an object that lead to streams.
struct JsonParser::Node {
    struct Key {
        std::string name;
        int stream = -1;
        std::unique_ptr<Node> inner;  // null: the value is the stream's
        bool each = false;            // `inner` is of each object of a list
    };
    std::vector<Key> keys;
    std::vector<int> streams;  // of all values below
    bool in_list = false;      // whether values are samples of a list
    std::unordered_map<std::string, std::size_t> places;

    Key& key(const std::string& name) {
        const auto [at, fresh] = places.try_emplace(name, keys.size());
        if (fresh) {
            keys.emplace_back();
            keys.back().name = name;
        }
        return keys[at->second];
    }
};

namespace {

using Node = JsonParser::Node;

constexpr unsigned kMaxDepth = 512;

FEEDLINE_INLINE std::uint64_t bytes_below(std::uint64_t v, std::uint8_t bound) {
    // High bits of the bytes less than `bound` <= 0x80. After the first such byte they may be wrong.
    return (v - 0x0101010101010101u * bound) & ~v & 0x8080808080808080u;
}

// The first quote, backslash or control byte at or after p.
FEEDLINE_INLINE const std::uint8_t* string_end(const std::uint8_t* p) {
    for (;; p += 8) {
        const std::uint64_t v = load64(p);
        const std::uint64_t quote = bytes_below(v ^ (0x0101010101010101u * '"'), 1);
        const std::uint64_t slash = bytes_below(v ^ (0x0101010101010101u * '\\'), 1);
        const std::uint64_t hit = quote | slash | bytes_below(v, 0x20);
        if (hit) return p + (__builtin_ctzll(hit) >> 3);
    }
}

int hex(std::uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// Four hex digits, or -1; the bytes must be readable.
int hex4(const std::uint8_t* p) {
    int value = 0;
    for (int i = 0; i < 4; ++i) {
        const int digit = hex(p[i]);
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

std::size_t to_utf8(std::uint32_t c, std::uint8_t* out) {
    if (c < 0x80) {
        out[0] = static_cast<std::uint8_t>(c);
        return 1;
    }
    if (c < 0x800) {
        out[0] = static_cast<std::uint8_t>(0xC0 | c >> 6);
        out[1] = static_cast<std::uint8_t>(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = static_cast<std::uint8_t>(0xE0 | c >> 12);
        out[1] = static_cast<std::uint8_t>(0x80 | (c >> 6 & 63));
        out[2] = static_cast<std::uint8_t>(0x80 | (c & 63));
        return 3;
    }
    out[0] = static_cast<std::uint8_t>(0xF0 | c >> 18);
    out[1] = static_cast<std::uint8_t>(0x80 | (c >> 12 & 63));
    out[2] = static_cast<std::uint8_t>(0x80 | (c >> 6 & 63));
    out[3] = static_cast<std::uint8_t>(0x80 | (c & 63));
    return 4;
}

bool is_word(const std::uint8_t* p, const char* word, std::size_t n) { return std::memcmp(p, word, n) == 0; }

// Parses a row. It stops at the newline that ends the row, and only loads reach beyond it.
struct Machine {
    const std::vector<RowField>& fields;
    const Node& root;
    RowSink& sink;
    std::vector<std::uint8_t> seen;
    std::string key;
    RowFault fault;
    const std::uint8_t* p = nullptr;

    Machine(const std::vector<RowField>& f, const Node& r, RowSink& s)
        : fields(f), root(r), sink(s), seen(f.size()) {}

    __attribute__((noinline, cold)) bool fail(RowError code, const std::uint8_t* at, int stream = -1,
                                              std::int64_t expected = 0) {
        fault = {code, at, stream, expected, *at};
        return false;
    }
    bool out_of_memory(int stream) {
        fault = {RowError::memory_limit, p, stream, static_cast<std::int64_t>(sink.limit()),
                 static_cast<std::int64_t>(sink.used())};
        return false;
    }

    FEEDLINE_INLINE const std::uint8_t* after_blanks(const std::uint8_t* q) {
        while (*q == ' ' || *q == '\t' || *q == '\r') ++q;
        return q;
    }
    __attribute__((always_inline)) inline void blanks() { p = after_blanks(p); }

    void row(const std::uint8_t* begin, const std::uint8_t* end) {
        p = begin;
        std::fill(seen.begin(), seen.end(), std::uint8_t{0});
        blanks();
        if (*p != '{') {
            fail(RowError::not_an_object, p);
            return;
        }
        if (!object(root)) return;
        blanks();
        if (p != end - 1) {
            fail(RowError::syntax, p);
            return;
        }
        for (std::size_t s = 0; s < seen.size(); ++s) {
            if (seen[s]) continue;
            if (!fields[s].optional) {
                fail(RowError::missing, begin, static_cast<int>(s));
                return;
            }
            if (!fields[s].ragged && !sink.absent(s)) {
                out_of_memory(static_cast<int>(s));
                return;
            }
        }
    }

    // Reads an object whose '{' is at p.
    bool object(const Node& node) {
        ++p;
        blanks();
        if (*p == '}') {
            ++p;
            return true;
        }
        std::size_t next = 0;
        for (;;) {
            const std::uint8_t* const at = p;
            const Node::Key* known = nullptr;
            if (*p != '"') return fail(RowError::syntax, p);
            // Rows mostly have their keys in the order of the row before.
            if (next < node.keys.size()) {
                const std::string& name = node.keys[next].name;
                const std::uint8_t* const end = string_end(p + 1);
                if (static_cast<std::size_t>(end - p - 1) == name.size() && *end == '"' &&
                    std::memcmp(p + 1, name.data(), name.size()) == 0) {
                    known = &node.keys[next];
                    p = end + 1;
                }
            }
            if (known == nullptr && !read_key(node, known)) return false;
            blanks();
            if (*p != ':') return fail(RowError::syntax, p);
            ++p;
            blanks();
            if (known == nullptr) {
                if (!skip()) return false;
            } else {
                next = static_cast<std::size_t>(known - node.keys.data()) + 1;
                if (known->each && known->inner != nullptr) {
                    if (!objects(*known->inner, at)) return false;
                } else if (known->inner != nullptr) {
                    if (*p == '{') {
                        if (!object(*known->inner)) return false;
                    } else if (is_word(p, "null", 4) && all_optional(*known->inner)) {
                        p += 4;  // its streams stay unseen
                    } else {
                        return mismatch('{', -1);
                    }
                } else {
                    if (seen[known->stream]) return fail(RowError::twice, at, known->stream);
                    seen[known->stream] = 1;
                    if (!(node.in_list ? sample(known->stream) : value(known->stream))) return false;
                }
            }
            blanks();
            if (*p == ',') {
                ++p;
                blanks();
                continue;
            }
            if (*p != '}') return fail(RowError::syntax, p);
            ++p;
            return true;
        }
    }

    bool all_optional(const Node& node) const {
        for (const int s : node.streams)
            if (!fields[s].optional) return false;
        return true;
    }

    // Reads a list of objects, each a sample of every stream of `node`. `key` is the place of its key.
    bool objects(const Node& node, const std::uint8_t* key_at) {
        for (const int s : node.streams)
            if (seen[s]) return fail(RowError::twice, key_at, s);
        if (*p != '[') {
            if (!is_word(p, "null", 4) || !all_optional(node)) return mismatch('[', node.streams.front());
            p += 4;
            return true;
        }
        ++p;
        blanks();
        if (*p == ']') {
            ++p;
        } else {
            for (;;) {
                if (!object_of_list(node)) return false;
                blanks();
                if (*p == ',') {
                    ++p;
                    blanks();
                    continue;
                }
                if (*p != ']') return fail(RowError::syntax, p);
                ++p;
                break;
            }
        }
        for (const int s : node.streams) seen[s] = 1;
        return true;
    }

    bool object_of_list(const Node& node) {
        const std::uint8_t* const begin = p;
        for (const int s : node.streams) seen[s] = 0;
        if (*p == '{') {
            if (!object(node)) return false;
        } else if (is_word(p, "null", 4) && all_optional(node)) {
            p += 4;
        } else {
            return mismatch('{', node.streams.front());
        }
        for (const int s : node.streams) {
            if (seen[s]) continue;
            if (!fields[s].optional) return fail(RowError::missing, begin, s);
            if (!sink.absent(static_cast<std::size_t>(s))) return out_of_memory(s);
        }
        return true;
    }

    bool read_key(const Node& node, const Node::Key*& known) {
        key.clear();
        if (!string([this](const std::uint8_t* from, std::size_t n) {
                key.append(reinterpret_cast<const char*>(from), n);
                return true;
            }, -1, false))
            return false;
        const auto at = node.places.find(key);
        if (at != node.places.end()) known = &node.keys[at->second];
        return true;
    }

    // Reads a string whose quote is at p, and passes its pieces to `keep`, in UTF-8.
    template <class Keep>
    bool string(Keep&& keep, int stream, bool check) {
        ++p;
        for (;;) {
            const std::uint8_t* const end = string_end(p);
            const auto n = static_cast<std::size_t>(end - p);
            if (check && n != 0) {
                const std::size_t bad = first_bad_utf8(reinterpret_cast<const std::byte*>(p), n);
                if (bad < n) return fail(RowError::bad_text, p + bad, stream);
            }
            if (n != 0 && !keep(p, n)) return out_of_memory(stream);
            p = end;
            if (*p == '"') {
                ++p;
                return true;
            }
            if (*p != '\\') return fail(RowError::bad_string, p, stream);
            std::uint8_t utf8[4];
            std::size_t size = 1;
            switch (p[1]) {
                case '"': utf8[0] = '"'; break;
                case '\\': utf8[0] = '\\'; break;
                case '/': utf8[0] = '/'; break;
                case 'b': utf8[0] = '\b'; break;
                case 'f': utf8[0] = '\f'; break;
                case 'n': utf8[0] = '\n'; break;
                case 'r': utf8[0] = '\r'; break;
                case 't': utf8[0] = '\t'; break;
                case 'u': {
                    int c = hex4(p + 2);
                    if (c < 0) return fail(RowError::bad_string, p, stream);
                    auto code = static_cast<std::uint32_t>(c);
                    if (code >= 0xD800 && code < 0xE000) {
                        c = code < 0xDC00 && p[6] == '\\' && p[7] == 'u' ? hex4(p + 8) : -1;
                        if (c >= 0xDC00 && c < 0xE000) {
                            code = 0x10000 + ((code - 0xD800) << 10) + (static_cast<std::uint32_t>(c) - 0xDC00);
                            p += 6;
                        } else if (check) {
                            return fail(RowError::bad_text, p, stream);
                        } else {
                            code = 0xFFFD;  // of a skipped value, or a key without a stream
                        }
                    }
                    size = to_utf8(code, utf8);
                    p += 4;
                    break;
                }
                default: return fail(RowError::bad_string, p, stream);
            }
            p += 2;
            if (!keep(utf8, size)) return out_of_memory(stream);
        }
    }

    bool mismatch(char expected, int stream) {
        if (is_word(p, "null", 4)) return fail(RowError::null_value, p, stream, expected);
        const std::uint8_t c = *p;
        const bool value = c == '"' || c == '[' || c == '{' || c == '-' || c == 'N' || c == 'I' || is_digit(c) ||
                           is_word(p, "true", 4) || is_word(p, "false", 5);
        return fail(value ? RowError::wrong_type : RowError::syntax, p, stream, expected);
    }

    bool value(int stream) {
        const RowField& field = fields[stream];
        if (!field.ragged) return sample(stream);
        if (*p != '[') {
            if (!field.optional || !is_word(p, "null", 4)) return mismatch('[', stream);
            p += 4;
            return true;
        }
        ++p;
        blanks();
        if (*p == ']') {
            ++p;
            return true;
        }
        for (;;) {
            if (!sample(stream)) return false;
            blanks();
            if (*p == ',') {
                ++p;
                blanks();
                continue;
            }
            if (*p != ']') return fail(RowError::syntax, p);
            ++p;
            return true;
        }
    }

    bool sample(int stream) {
        if (__builtin_expect(*p == 'n', 0) && fields[stream].optional && is_word(p, "null", 4)) {
            p += 4;
            return sink.absent(static_cast<std::size_t>(stream)) || out_of_memory(stream);
        }
        switch (fields[stream].type) {
            case RowType::boolean: return numbers<bool>(stream);
            case RowType::int8: return numbers<std::int8_t>(stream);
            case RowType::int16: return numbers<std::int16_t>(stream);
            case RowType::int32: return numbers<std::int32_t>(stream);
            case RowType::int64: return numbers<std::int64_t>(stream);
            case RowType::uint8: return numbers<std::uint8_t>(stream);
            case RowType::uint16: return numbers<std::uint16_t>(stream);
            case RowType::uint32: return numbers<std::uint32_t>(stream);
            case RowType::uint64: return numbers<std::uint64_t>(stream);
            case RowType::float32: return numbers<float>(stream);
            case RowType::float64: return numbers<double>(stream);
            case RowType::text: {
                if (*p != '"') return mismatch('"', stream);
                const auto s = static_cast<std::size_t>(stream);
                if (!string([this, s](const std::uint8_t* from, std::size_t n) { return sink.append(s, from, n); },
                            stream, true))
                    return false;
                return sink.end_string(s) || out_of_memory(stream);
            }
            case RowType::bytes: {
                const std::uint8_t* const begin = p;
                if (!skip()) return false;
                const auto s = static_cast<std::size_t>(stream);
                return (sink.append(s, begin, static_cast<std::size_t>(p - begin)) && sink.end_string(s)) ||
                       out_of_memory(stream);
            }
        }
        return false;
    }

    template <class T>
    bool numbers(int stream) {
        std::uint8_t* at = sink.sample(static_cast<std::size_t>(stream));
        if (at == nullptr) return out_of_memory(stream);
        T* out = reinterpret_cast<T*>(at);
        return list<T>(fields[stream].shape.data(), fields[stream].shape.size(), out, stream);
    }

    // Reads a list of lists, `rank` deep, and writes its numbers to `out`.
    template <class T>
    bool list(const std::int64_t* shape, std::size_t rank, T*& out, int stream) {
        if (rank == 0) return number(*out++, stream);
        if (*p != '[') return mismatch('[', stream);
        const std::uint8_t* const begin = p++;
        blanks();
        const std::int64_t n = *shape;
        std::int64_t k = 0;
        if (*p == ']') {
            ++p;
        } else {
            for (;;) {
                if (k == n) return fail(RowError::too_many_values, begin, stream, n);
                if (rank == 1 ? !number(*out++, stream) : !list<T>(shape + 1, rank - 1, out, stream)) return false;
                ++k;
                blanks();
                if (*p == ',') {
                    p = after_blanks(p + 1);
                    continue;
                }
                if (*p != ']') return fail(RowError::syntax, p);
                ++p;
                break;
            }
        }
        if (k == n) return true;
        fail(RowError::too_few_values, begin, stream, n);
        fault.got = k;
        return false;
    }

    // The parts of a number.
    struct Digits {
        std::uint64_t m = 0;
        std::size_t integer_digits = 0, fraction = 0;
        std::int64_t power = 0;
        bool integer = true;
    };
    // Reads a number at q, from its first digit on. Returns false if it is no number of JSON.
    __attribute__((always_inline)) inline bool digits(const std::uint8_t*& q, Digits& d, int stream) {
        const std::uint8_t* const first = q;
        add_digits(q, d.m, d.integer_digits);
        if (d.integer_digits == 0 || (*first == '0' && d.integer_digits > 1))
            return fail(RowError::syntax, d.integer_digits ? first : q, stream);
        if (*q == '.') {
            d.integer = false;
            ++q;
            add_digits(q, d.m, d.fraction);
            if (d.fraction == 0) return fail(RowError::syntax, q, stream);
        }
        if ((*q | 0x20) == 'e') {
            d.integer = false;
            ++q;
            const bool down = *q == '-';
            if (down || *q == '+') ++q;
            std::uint64_t e = 0;
            std::size_t count = 0;
            const std::uint8_t* const from = q;
            add_digits(q, e, count);
            if (count == 0) return fail(RowError::syntax, q, stream);
            for (const std::uint8_t* zero = from; *zero == '0' && count > 1; ++zero) --count;
            if (count > 9) e = 1000000000;  // far out of range: left to the exact path
            d.power = down ? -static_cast<std::int64_t>(e) : static_cast<std::int64_t>(e);
        }
        return true;
    }

    template <class T>
    __attribute__((always_inline)) inline bool number(T& out, int stream) {
        const std::uint8_t* const start = p;
        if constexpr (std::is_same_v<T, bool>) {
            const bool is_true = is_word(p, "true", 4);
            if (!is_true && !is_word(p, "false", 5)) return missing_value(out, stream, 't');
            p += is_true ? 4 : 5;
            out = is_true;
            return true;
        } else {
            const bool negative = *p == '-';
            const std::uint8_t* q = p + negative;
            if (__builtin_expect(!is_digit(*q), 0)) return no_digit(out, negative, stream);
            Digits d;
            if (!digits(q, d, stream)) return false;
            p = q;
            if constexpr (std::is_integral_v<T>) {
                if (!d.integer) return fail(RowError::wrong_type, start, stream, 'i');
                return integer(out, d, start, q, stream);
            } else {
                const std::int64_t power = d.power - static_cast<std::int64_t>(d.fraction);
                if (d.integer_digits + d.fraction <= 19 && d.m <= kExactIntegers && power >= -22 && power <= 22) {
                    // Both operands are exact, so the one operation rounds correctly.
                    double v = static_cast<double>(d.m);
                    v = power < 0 ? v / kCtfPowersOfTen[-power] : v * kCtfPowersOfTen[power];
                    if (narrows_safely(negative ? -v : v, out)) return true;
                }
                out = exact(start, q, T{});
                return true;
            }
        }
    }

    // Reads a null within a sample of an optional stream. Anything else is a mismatch.
    template <class T>
    __attribute__((noinline, cold)) bool missing_value(T& out, int stream, char expected) {
        if (stream < 0 || !fields[stream].optional || !is_word(p, "null", 4)) return mismatch(expected, stream);
        const auto s = static_cast<std::size_t>(stream);
        const auto place = &out - reinterpret_cast<const T*>(sink.latest(s));
        out = T{};
        if (!sink.miss(s, static_cast<std::uint64_t>(place), 1)) return out_of_memory(stream);
        p += 4;
        return true;
    }

    template <class T>
    __attribute__((noinline, cold)) bool no_digit(T& out, bool negative, int stream) {
        if constexpr (std::is_floating_point_v<T>) {
            if (is_word(p + negative, "Infinity", 8)) {
                out = negative ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::infinity();
                p += 8 + negative;
                return true;
            }
            if (is_word(p, "NaN", 3)) {
                out = std::numeric_limits<T>::quiet_NaN();
                p += 3;
                return true;
            }
        } else if (is_word(p + negative, "Infinity", 8) || is_word(p, "NaN", 3)) {
            return fail(RowError::wrong_type, p, stream, 'i');
        }
        if (negative) return fail(RowError::syntax, p + 1, stream);
        return missing_value(out, stream, std::is_integral_v<T> ? 'i' : '0');
    }

    template <class T>
    __attribute__((always_inline)) inline bool integer(T& out, const Digits& d, const std::uint8_t* start,
                                                       const std::uint8_t* end, int stream) {
        if (d.integer_digits < 19) {
            const auto v = *start == '-' ? -static_cast<std::int64_t>(d.m) : static_cast<std::int64_t>(d.m);
            if constexpr (std::is_signed_v<T>) {
                if (v < std::numeric_limits<T>::min() || v > std::numeric_limits<T>::max())
                    return fail(RowError::out_of_range, start, stream);
            } else if (v < 0 || d.m > std::numeric_limits<T>::max()) {
                return fail(RowError::out_of_range, start, stream);
            }
            out = static_cast<T>(v);
            return true;
        }
        const auto* a = reinterpret_cast<const char*>(start);
        const auto* b = reinterpret_cast<const char*>(end);
        if (std::from_chars(a, b, out).ec != std::errc()) return fail(RowError::out_of_range, start, stream);
        return true;
    }

    // Skips a value.
    bool skip() {
        std::uint64_t kinds[kMaxDepth / 64] = {};  // a bit for each open bracket: whether it opens an object
        unsigned depth = 0;
        for (;;) {
            if (*p == '"') {
                if (!string([](const std::uint8_t*, std::size_t) { return true; }, -1, false)) return false;
            } else if (*p == '{' || *p == '[') {
                if (depth == kMaxDepth) return fail(RowError::too_deep, p);
                const std::uint64_t bit = std::uint64_t{1} << depth % 64;
                const bool object = *p == '{';
                kinds[depth / 64] = object ? kinds[depth / 64] | bit : kinds[depth / 64] & ~bit;
                ++depth;
                ++p;
                blanks();
                if (*p == (object ? '}' : ']')) {
                    ++p;
                    --depth;
                } else {
                    if (object && !skip_key()) return false;
                    continue;
                }
            } else if (is_word(p, "true", 4) || is_word(p, "null", 4)) {
                p += 4;
            } else if (is_word(p, "false", 5)) {
                p += 5;
            } else {
                double ignored;
                const std::uint8_t* const at = p;
                if (!number(ignored, -1)) {
                    if (fault.code == RowError::wrong_type || fault.code == RowError::null_value)
                        return fail(RowError::syntax, at);
                    return false;
                }
            }
            // A value has ended.
            for (;;) {
                if (depth == 0) return true;
                blanks();
                const bool object = kinds[(depth - 1) / 64] >> (depth - 1) % 64 & 1;
                if (*p == ',') {
                    ++p;
                    blanks();
                    if (object && !skip_key()) return false;
                    break;
                }
                if (*p != (object ? '}' : ']')) return fail(RowError::syntax, p);
                ++p;
                --depth;
            }
        }
    }

    bool skip_key() {
        if (*p != '"') return fail(RowError::syntax, p);
        if (!string([](const std::uint8_t*, std::size_t) { return true; }, -1, false)) return false;
        blanks();
        if (*p != ':') return fail(RowError::syntax, p);
        ++p;
        blanks();
        return true;
    }
};

}  // namespace

JsonParser::JsonParser(std::vector<RowField> fields, std::vector<JsonPath> paths, std::uint64_t memory_limit)
    : fields_(std::move(fields)), root_(std::make_unique<Node>()), memory_limit_(memory_limit) {
    for (std::size_t s = 0; s < paths.size(); ++s) {
        Node* node = root_.get();
        for (std::size_t k = 0; k < paths[s].size(); ++k) {
            Node::Key& key = node->key(*paths[s][k]);
            if (k + 1 < paths[s].size() && !paths[s][k + 1]) {
                key.each = true;
                ++k;
            }
            if (k + 1 == paths[s].size()) {
                key.stream = static_cast<int>(s);
            } else {
                if (key.inner == nullptr) {
                    key.inner = std::make_unique<Node>();
                    key.inner->in_list = node->in_list || key.each;
                }
                node = key.inner.get();
                node->streams.push_back(static_cast<int>(s));
            }
        }
    }
}

JsonParser::~JsonParser() = default;

RowColumns JsonParser::parse(const Rows& rows) const {
    RowSink sink(fields_, rows.n, memory_limit_);
    Machine machine(fields_, *root_, sink);
    return parse_rows(machine, sink, rows);
}

std::uint32_t JsonParser::samples(const std::uint8_t* row, std::size_t n, int size_stream) const {
    RowSink sink(fields_, 0, memory_limit_);
    Machine machine(fields_, *root_, sink);
    sink.begin_row();
    std::vector<std::uint8_t> scratch(n + 1 + 2 * kRowPad, 0);
    std::memcpy(scratch.data() + kRowPad, row, n);
    if (n == 0 || scratch[kRowPad + n - 1] != '\n') scratch[kRowPad + n++] = '\n';
    machine.row(scratch.data() + kRowPad, scratch.data() + kRowPad + n);
    return machine.fault.code == RowError::none ? sink.count(size_stream) : 0;
}

}  // namespace feedline
