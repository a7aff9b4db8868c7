#include "feedline/tfrecord.h"

#include <algorithm>
#include <map>
#include <type_traits>
#include <utility>

#include "feedline/crc32c.h"
#include "feedline/gather.h"
#include "rows_core.h"
#include "swar.h"

namespace feedline {
namespace {

enum Kind : int { kNone = 0, kBytes = 1, kFloats = 2, kInts = 3 };

constexpr unsigned kMaxDepth = 100;  // of groups, protobuf's own limit
constexpr std::size_t kMaxVarint = 10, kMaxVarint32 = 5;
constexpr std::size_t kMaxRemembered = 256;

struct ByteRange {
    const std::uint8_t* p = nullptr;
    const std::uint8_t* end = nullptr;
    std::size_t size() const { return static_cast<std::size_t>(end - p); }
};

FEEDLINE_INLINE std::uint32_t load32(const std::uint8_t* p) {
    std::uint32_t v;
    std::memcpy(&v, p, 4);
    return v;
}

// Reads a varint of at most `max_bytes` bytes. Bits beyond 64 are dropped, as in protobuf.
FEEDLINE_INLINE bool read_varint(const std::uint8_t*& p, const std::uint8_t* end, std::uint64_t& value,
                                 std::size_t max_bytes = kMaxVarint) {
    if (p < end && *p < 0x80) {
        value = *p++;
        return true;
    }
    if (end - p >= 2 && p[1] < 0x80) {
        value = (p[0] & 0x7Fu) | static_cast<std::uint64_t>(p[1]) << 7;
        p += 2;
        return true;
    }
    value = 0;
    const std::uint8_t* q = p;
    const auto n = std::min(max_bytes, static_cast<std::size_t>(end - p));
    for (std::size_t i = 0; i < n; ++i) {
        const std::uint64_t byte = *q++;
        value |= (byte & 0x7F) << (7 * i);
        if (byte < 0x80) {
            p = q;
            return true;
        }
    }
    return false;
}

// The number of varints that end in a range.
std::uint64_t count_varints(ByteRange part) {
    std::uint64_t n = 0;
    const std::uint8_t* p = part.p;
    for (; part.end - p >= 8; p += 8) n += ((~load64(p) >> 7 & 0x0101010101010101u) * 0x0101010101010101u) >> 56;
    for (; p < part.end; ++p) n += *p < 0x80;
    return n;
}

// The fields of a message, one after another.
class Message {
public:
    explicit Message(ByteRange part) : p_(part.p), end_(part.end) {}

    // Moves to the next field. Returns false at the end, and sets `bad` if the bytes are no message.
    bool next() {
        if (p_ == end_) return false;
        at = p_;
        std::uint64_t tag, size;
        if (!read_varint(p_, end_, tag, kMaxVarint32) || tag > 0xFFFFFFFFu || tag < 8) return !(bad = true);
        number = static_cast<std::uint32_t>(tag >> 3);
        wire = static_cast<unsigned>(tag & 7);
        switch (wire) {
            case 0: return read_varint(p_, end_, value) || !(bad = true);
            case 1: size = 8; break;
            case 2:
                if (!read_varint(p_, end_, size, kMaxVarint32)) return !(bad = true);
                break;
            case 3: return skip_group() || !(bad = true);
            case 5: size = 4; break;
            default: return !(bad = true);
        }
        if (size > static_cast<std::size_t>(end_ - p_)) return !(bad = true);
        body = {p_, p_ + size};
        p_ += size;
        return true;
    }
    // Moves to the next message or bytes with this number.
    bool next(std::uint32_t expected) {
        while (next())
            if (number == expected && wire == 2) return true;
        return false;
    }

    const std::uint8_t* at = nullptr;  // of the field
    std::uint32_t number = 0;
    unsigned wire = 0;
    std::uint64_t value = 0;  // wire 0
    ByteRange body;                // wires 1, 2 and 5
    bool bad = false;

private:
    bool skip_group() {
        std::uint32_t open[kMaxDepth];
        open[0] = number;
        unsigned depth = 1;
        std::uint64_t tag, size;
        while (depth > 0) {
            if (!read_varint(p_, end_, tag, kMaxVarint32) || tag > 0xFFFFFFFFu || tag < 8) return false;
            size = 0;
            switch (tag & 7) {
                case 0:
                    if (!read_varint(p_, end_, value)) return false;
                    break;
                case 1: size = 8; break;
                case 2:
                    if (!read_varint(p_, end_, size, kMaxVarint32)) return false;
                    break;
                case 3:
                    if (depth == kMaxDepth) return false;
                    open[depth++] = static_cast<std::uint32_t>(tag >> 3);
                    break;
                case 4:
                    if (open[--depth] != static_cast<std::uint32_t>(tag >> 3)) return false;
                    break;
                case 5: size = 4; break;
                default: return false;
            }
            if (size > static_cast<std::size_t>(end_ - p_)) return false;
            p_ += size;
        }
        return true;
    }

    const std::uint8_t* p_;
    const std::uint8_t* end_;
};

// A feature: the lists of its last kind, of which a writer may have made several.
class Feature {
public:
    int kind = kNone;
    const std::uint8_t* bad = nullptr;

    void clear() {
        kind = kNone;
        lists_.clear();
    }

    bool merge(ByteRange message) {
        Message m(message);
        while (m.next()) {
            if (m.wire != 2 || m.number < kBytes || m.number > kInts) continue;
            if (kind != static_cast<int>(m.number)) lists_.clear();
            kind = static_cast<int>(m.number);
            lists_.push_back(m.body);
        }
        return !m.bad || broken(m.at);
    }

    // Reads the entry of a map, and merges its pieces.
    bool read(ByteRange entry) {
        clear();
        Message m(entry);
        while (m.next(2))
            if (!merge(m.body)) return false;
        return !m.bad || broken(m.at);
    }

    bool count(std::uint64_t& n) {
        n = 0;
        return each([&](const Message& m) {
            if (m.wire != 2 || kind == kBytes) {
                ++n;
            } else if (kind == kFloats) {
                if (m.body.size() % 4 != 0) return false;
                n += m.body.size() / 4;
            } else if (m.body.size() != 0) {
                if (m.body.end[-1] >= 0x80) return false;
                n += count_varints(m.body);
            }
            return true;
        });
    }

    // Calls use(field) for the fields with values, until it returns false. Returns false then, and for a list that is
    // no message.
    template <class Use>
    bool each(Use&& use) {
        for (const ByteRange& list : lists_) {
            Message m(list);
            while (m.next()) {
                const bool single = m.wire == (kind == kInts ? 0u : kind == kFloats ? 5u : 2u);
                if (m.number != 1 || !(single || (m.wire == 2 && kind != kBytes))) continue;
                if (!use(m)) return broken(m.at);
            }
            if (m.bad) return broken(m.at);
        }
        return true;
    }

private:
    bool broken(const std::uint8_t* at) {
        bad = at;
        return false;
    }

    std::vector<ByteRange> lists_;
};

template <class T>
FEEDLINE_INLINE bool fits(std::int64_t v) {
    if constexpr (std::is_same_v<T, bool>)
        return v == 0 || v == 1;
    else if constexpr (std::is_floating_point_v<T> || std::is_same_v<T, std::int64_t>)
        return true;
    else if constexpr (std::is_same_v<T, std::uint64_t>)
        return v >= 0;
    else
        return v >= static_cast<std::int64_t>(std::numeric_limits<T>::min()) &&
               v <= static_cast<std::int64_t>(std::numeric_limits<T>::max());
}

template <class T>
FEEDLINE_INLINE void put(std::uint8_t*& out, T v) {
    std::memcpy(out, &v, sizeof v);
    out += sizeof v;
}

struct OutOfRange {  // an integer that a type cannot represent
    const std::uint8_t* at = nullptr;
    std::int64_t value = 0;
};

template <class T>
bool put_ints(ByteRange packed, std::uint8_t*& into, OutOfRange& excess) {
    const std::uint8_t* p = packed.p;
    std::uint8_t* out = into;  // a local pointer, as the compiler must assume that the written bytes change `into`
    while (p < packed.end) {
        if constexpr (!std::is_same_v<T, bool>) {
            if (packed.end - p >= 8) {
                const std::uint64_t eight = load64(p);
                if ((eight & 0x8080808080808080u) == 0) {
                    for (int i = 0; i < 8; ++i) put(out, static_cast<T>(eight >> (8 * i) & 0xFF));
                    p += 8;
                    continue;
                }
            }
        }
        const std::uint8_t* const at = p;
        std::uint64_t v;
        if (!read_varint(p, packed.end, v)) return false;
        if (!fits<T>(static_cast<std::int64_t>(v))) {
            excess = {at, static_cast<std::int64_t>(v)};
            return false;
        }
        put(out, static_cast<T>(static_cast<std::int64_t>(v)));
    }
    into = out;
    return true;
}

template <class T>
bool put_floats(ByteRange packed, std::uint8_t*& out) {
    if constexpr (std::is_same_v<T, float>) {
        if (packed.size() != 0) std::memcpy(out, packed.p, packed.size());
        out += packed.size();
    } else {
        for (const std::uint8_t* p = packed.p; p < packed.end; p += 4) {
            float v;
            std::memcpy(&v, p, 4);
            put(out, static_cast<T>(v));
        }
    }
    return true;
}

// Writes all values, count() in number.
template <class T>
bool put_numbers(Feature& feature, std::uint8_t* out, OutOfRange& excess) {
    return feature.each([&](const Message& m) {
        if (feature.kind == kFloats) {
            if constexpr (std::is_floating_point_v<T>) return put_floats<T>(m.body, out);
            return false;
        }
        if (m.wire == 2) return put_ints<T>(m.body, out, excess);
        if (!fits<T>(static_cast<std::int64_t>(m.value))) {
            excess = {m.at, static_cast<std::int64_t>(m.value)};
            return false;
        }
        put(out, static_cast<T>(static_cast<std::int64_t>(m.value)));
        return true;
    });
}

bool put_numbers(RowType type, Feature& feature, std::uint8_t* out, OutOfRange& excess) {
    switch (type) {
        case RowType::boolean: return put_numbers<bool>(feature, out, excess);
        case RowType::int8: return put_numbers<std::int8_t>(feature, out, excess);
        case RowType::int16: return put_numbers<std::int16_t>(feature, out, excess);
        case RowType::int32: return put_numbers<std::int32_t>(feature, out, excess);
        case RowType::int64: return put_numbers<std::int64_t>(feature, out, excess);
        case RowType::uint8: return put_numbers<std::uint8_t>(feature, out, excess);
        case RowType::uint16: return put_numbers<std::uint16_t>(feature, out, excess);
        case RowType::uint32: return put_numbers<std::uint32_t>(feature, out, excess);
        case RowType::uint64: return put_numbers<std::uint64_t>(feature, out, excess);
        case RowType::float32: return put_numbers<float>(feature, out, excess);
        default: return put_numbers<double>(feature, out, excess);
    }
}

// Calls use(name, entry, list) for the entries of both maps, in the order of the message. Returns null, or the place at
// which the bytes are no message.
template <class Use>
const std::uint8_t* each_entry(ByteRange message, Use&& use) {
    Message top(message);
    while (top.next()) {
        if (top.wire != 2 || top.number > 2) continue;
        Message map(top.body);
        while (map.next(1)) {
            Message entry(map.body);
            ByteRange name{map.body.p, map.body.p};
            while (entry.next(1)) name = entry.body;
            if (entry.bad) return entry.at;
            use(std::string_view(reinterpret_cast<const char*>(name.p), name.size()), map.body, top.number == 2);
        }
        if (map.bad) return map.at;
    }
    return top.bad ? top.at : nullptr;
}

// Parses records into a sink.
struct Machine {
    const std::vector<RowField>& fields;
    const std::vector<ExampleSource>& sources;
    const ExampleParser::Names* names;
    RowSink& sink;
    std::vector<std::uint64_t> sizes;  // values of a sample
    std::vector<ByteRange> entries;    // the record's, by stream; null: none
    std::vector<int> order;            // the streams of the entries of the records before
    std::vector<std::uint8_t> views;   // by stream: whether its strings are not copied
    const std::uint8_t* base = nullptr;  // origin of the places of these strings
    Feature feature;
    RowFault fault;

    Machine(const std::vector<RowField>& f, const std::vector<ExampleSource>& s, const ExampleParser::Names* n,
            RowSink& out)
        : fields(f), sources(s), names(n), sink(out), entries(f.size()), views(f.size(), 0) {
        for (const RowField& field : f) {
            std::uint64_t size = 1;
            for (const std::int64_t dim : field.shape)
                if (__builtin_mul_overflow(size, static_cast<std::uint64_t>(dim), &size)) size = ~std::uint64_t{0};
            sizes.push_back(size);
        }
    }

    __attribute__((noinline, cold)) bool fail(RowError code, const std::uint8_t* at, int stream = -1,
                                              std::uint64_t expected = 0, std::uint64_t got = 0) {
        fault = {code, at, stream, static_cast<std::int64_t>(expected), static_cast<std::int64_t>(got)};
        return false;
    }
    bool out_of_memory(int s, const std::uint8_t* at) {
        return fail(RowError::memory_limit, at, s, sink.limit(), sink.used());
    }

    bool record(const std::uint8_t* p, std::size_t size) {
        if (size < kRecordHead) return fail(RowError::record_cut, p, -1, kRecordHead, size);
        const std::uint32_t head = masked_crc32c(p, 8);
        if (head != load32(p + 8)) return fail(RowError::length_crc, p, -1, load32(p + 8), head);
        const std::uint64_t n = load64(p);
        if (n > kMaxRecord) return fail(RowError::record_too_long, p, -1, kMaxRecord, n);
        if (size < kRecordFrame || n > size - kRecordFrame)
            return fail(RowError::record_cut, p, -1, n + kRecordFrame, size);
        const std::uint8_t* const message = p + kRecordHead;
        const std::uint32_t body = masked_crc32c(message, n);
        const std::uint32_t stored = load32(message + n);
        if (body != stored) return fail(RowError::message_crc, message, -1, stored, body);
        return example({message, message + n});
    }

    bool example(ByteRange message) {
        std::fill(entries.begin(), entries.end(), ByteRange{});
        std::size_t k = 0;
        const std::uint8_t* const bad = each_entry(message, [&](std::string_view name, ByteRange entry, bool list) {
            const int s = stream(k++, name, list);
            if (s >= 0) entries[s] = entry;
        });
        if (bad != nullptr) return fail(RowError::bad_message, bad);
        for (int s = 0; s < static_cast<int>(fields.size()); ++s) {
            if (entries[s].p == nullptr ? !missing(s, message.p) : sources[s].list ? !steps(s) : !values(s, message.p))
                return false;
        }
        return true;
    }

    // The stream of the record's entry number `k`, or -1. Records mostly have their entries in one order.
    int stream(std::size_t k, std::string_view name, bool list) {
        if (k < order.size()) {
            const int s = order[k];
            if (s >= 0 && sources[s].list == list && sources[s].name == name) return s;
        } else if (k < kMaxRemembered) {
            order.resize(k + 1, -1);
        }
        const int s = names[list].find(name);
        if (k < order.size()) order[k] = s;
        return s;
    }

    bool missing(int s, const std::uint8_t* at) {
        const ExampleSource& source = sources[s];
        if (fields[s].optional) return fields[s].ragged || sink.absent(s) || out_of_memory(s, at);
        if (!source.optional) return fail(RowError::missing, at, s);
        if (fields[s].ragged) return true;
        const auto* from = reinterpret_cast<const std::uint8_t*>(source.fallback.data());
        if (is_string(fields[s].type))
            return (sink.append(s, from, source.fallback.size()) && sink.end_string(s)) || out_of_memory(s, at);
        std::uint8_t* const out = sink.sample(s);
        if (out == nullptr) return out_of_memory(s, at);
        if (!source.fallback.empty()) std::memcpy(out, from, source.fallback.size());
        return true;
    }

    bool broken(int s) { return fail(RowError::bad_message, feature.bad, s); }

    // Reads a feature: a sample, or several samples of a ragged stream.
    bool values(int s, const std::uint8_t* message) {
        const ByteRange entry = entries[s];
        if (!feature.read(entry)) return broken(s);
        if (feature.kind == kNone) return missing(s, message);
        return samples(s, entry.p, fields[s].ragged);
    }

    // Reads a feature list, with a sample for each step.
    bool steps(int s) {
        Message entry(entries[s]);
        while (entry.next(2)) {
            Message list(entry.body);
            while (list.next(1)) {
                feature.clear();
                if (!feature.merge(list.body)) return broken(s);
                if (!samples(s, list.at, false)) return false;
            }
            if (list.bad) return fail(RowError::bad_message, list.at, s);
        }
        return !entry.bad || fail(RowError::bad_message, entry.at, s);
    }

    bool samples(int s, const std::uint8_t* at, bool any) {
        const RowType type = fields[s].type;
        const bool kind = is_string(type)  ? feature.kind == kBytes
                          : is_real(type) ? feature.kind == kFloats || feature.kind == kInts
                                          : feature.kind == kInts;
        if (!kind)
            return fail(RowError::feature_kind, at, s, is_string(type) ? kBytes : is_real(type) ? kFloats : kInts,
                        static_cast<std::uint64_t>(feature.kind));
        std::uint64_t n;
        if (!feature.count(n)) return broken(s);
        const std::uint64_t size = sizes[s];
        if (!any && n != size) return fail(n > size ? RowError::too_many_values : RowError::too_few_values, at, s, size, n);
        if (any && n != 0 && (size == 0 || n % size != 0)) return fail(RowError::uneven_values, at, s, size, n);
        if (is_string(type)) return strings(s, type == RowType::text);
        std::uint8_t* const out = sink.samples(s, size == 0 ? !any : n / size);
        if (out == nullptr) return out_of_memory(s, at);
        OutOfRange excess;
        if (put_numbers(type, feature, out, excess)) return true;
        if (excess.at == nullptr) return broken(s);
        return fail(RowError::out_of_range, excess.at, s, 0, static_cast<std::uint64_t>(excess.value));
    }

    bool strings(int s, bool text) {
        const bool good = feature.each([&](const Message& m) {
            const std::size_t n = m.body.size();
            if (text) {
                const std::size_t bad = first_bad_utf8(reinterpret_cast<const std::byte*>(m.body.p), n);
                if (bad < n) return fail(RowError::bad_text, m.body.p + bad, s, 0, m.body.p[bad]);
            }
            if (!views[s]) return (sink.append(s, m.body.p, n) && sink.end_string(s)) || out_of_memory(s, m.at);
            std::uint8_t* const out = sink.sample(s);
            if (out == nullptr) return out_of_memory(s, m.at);
            const std::int64_t span[2] = {m.body.p - base, m.body.end - base};
            std::memcpy(out, span, sizeof span);
            return true;
        });
        if (good || fault.code != RowError::none) return good;
        return broken(s);
    }
};

}  // namespace

std::uint32_t masked_crc32c(const std::uint8_t* data, std::size_t n) {
    const std::uint32_t crc = crc32c(data, n);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

int ExampleParser::Names::find(std::string_view name) const {
    const auto at = streams.find(name);
    return at == streams.end() ? -1 : at->second;
}

ExampleParser::ExampleParser(std::vector<RowField> fields, std::vector<ExampleSource> sources,
                             std::uint64_t memory_limit)
    : fields_(std::move(fields)), sources_(std::move(sources)), memory_limit_(memory_limit) {
    for (std::size_t s = 0; s < sources_.size(); ++s) {
        names_[sources_[s].list].streams.emplace(sources_[s].name, static_cast<int>(s));
        views_.push_back(is_string(fields_[s].type) && !fields_[s].ragged && !sources_[s].optional &&
                         !fields_[s].optional);
    }
}

RowColumns ExampleParser::parse(const Rows& records, const std::vector<std::uint8_t>& views) const {
    RowSink sink(fields_, records.n, memory_limit_, views);
    Machine machine(fields_, sources_, names_, sink);
    if (!views.empty()) machine.views = views;
    machine.base = records.text;
    for (std::size_t i = 0; i < records.n; ++i) {
        std::size_t begin, n;
        if (!records.find(i, begin, n)) {
            sink.out.outside = true;
            break;
        }
        const std::uint8_t* const p = records.text + begin;
        sink.begin_row();
        machine.fault = RowFault{};
        machine.record(p, n);
        if (!sink.end_row(i, machine.fault, p, begin)) break;
    }
    return std::move(sink.out);
}

std::uint32_t ExampleParser::samples(const std::uint8_t* record, std::size_t bytes, int size_stream) const {
    RowSink sink(fields_, 0, memory_limit_);
    Machine machine(fields_, sources_, names_, sink);
    sink.begin_row();
    return machine.record(record, bytes) ? sink.count(size_stream) : 0;
}

bool list_features(const std::uint8_t* message, std::size_t n, std::vector<FeatureInfo>& features) {
    std::map<std::pair<std::string, bool>, ByteRange> entries;
    const auto keep = [&](std::string_view name, ByteRange entry, bool list) {
        entries[{std::string(name), list}] = entry;
    };
    if (each_entry({message, message + n}, keep) != nullptr) return false;
    Feature feature;
    for (const auto& [key, entry] : entries) {
        FeatureInfo info{key.first, key.second, kNone, 0, 0, 0};
        const auto step = [&] {
            std::uint64_t values;
            if (!feature.count(values)) return false;
            info.kind = info.steps == 0 || info.kind == feature.kind ? feature.kind : -1;
            info.min_values = info.steps == 0 ? values : std::min(info.min_values, values);
            info.max_values = std::max(info.max_values, values);
            ++info.steps;
            return true;
        };
        if (!info.list) {
            if (!feature.read(entry) || !step()) return false;
        } else {
            Message pieces(entry);
            while (pieces.next(2)) {
                Message list(pieces.body);
                while (list.next(1)) {
                    feature.clear();
                    if (!feature.merge(list.body) || !step()) return false;
                }
                if (list.bad) return false;
            }
            if (pieces.bad) return false;
        }
        features.push_back(std::move(info));
    }
    return true;
}

RecordIndexer::RecordIndexer(std::shared_ptr<const ExampleParser> parser, int size_stream)
    : parser_(std::move(parser)), size_stream_(size_stream) {}

void RecordIndexer::emit(std::uint64_t size, std::uint32_t samples, CtfBytes& entries) {
    const CtfEntry entry{number_, begin_, static_cast<std::uint32_t>(size), samples};
    if (entries.capacity - entries.size < sizeof entry) entries.grow(sizeof entry);
    std::memcpy(entries.data + entries.size, &entry, sizeof entry);
    entries.size += sizeof entry;
    emitted_ = true;
}

// The head of a record is complete.
void RecordIndexer::head(CtfBytes& entries) {
    size_ = load64(carry_.data());
    if (masked_crc32c(carry_.data(), 8) != load32(carry_.data() + 8)) {
        ended_ = true;
        if (begin_ == 0)
            error_ = RowError::length_crc;
        else
            emit(kRecordHead, parser_ == nullptr, entries);
        return;
    }
    remaining_ = size_ > ~std::uint64_t{0} - 4 ? ~std::uint64_t{0} : size_ + 4;
    if (size_ > kMaxRecord) emit(kRecordHead, parser_ == nullptr, entries);
}

void RecordIndexer::feed(const std::uint8_t* block, std::size_t n, CtfBytes& entries) {
    bytes_ += n;
    const std::uint8_t* p = block;
    const std::uint8_t* const end = block + n;
    while (p < end && !ended_) {
        const auto available = static_cast<std::size_t>(end - p);
        if (remaining_ == 0) {
            const std::size_t take = std::min(kRecordHead - carry_.size(), available);
            carry_.insert(carry_.end(), p, p + take);
            p += take;
            if (carry_.size() == kRecordHead) head(entries);
            continue;
        }
        const auto take = static_cast<std::size_t>(std::min<std::uint64_t>(remaining_, available));
        const bool count = parser_ != nullptr && !emitted_ && size_ <= parser_->memory_limit();
        if (count) carry_.insert(carry_.end(), p, p + take);
        p += take;
        remaining_ -= take;
        if (remaining_ != 0) continue;
        if (!emitted_) {
            const std::uint64_t record_bytes = size_ + kRecordFrame;
            std::uint32_t samples = parser_ == nullptr;
            if (count) samples = parser_->samples(carry_.data(), record_bytes, size_stream_);
            emit(record_bytes, samples, entries);
        }
        begin_ += size_ + kRecordFrame;
        ++number_;
        carry_.clear();
        emitted_ = false;
    }
}

void RecordIndexer::finish(CtfBytes& entries) {
    if (ended_ || emitted_ || bytes_ == begin_) return;
    if (begin_ == 0 && bytes_ < kRecordHead)
        error_ = RowError::record_cut;
    else
        emit(std::min<std::uint64_t>(bytes_ - begin_, kRecordHead), parser_ == nullptr, entries);
}

}  // namespace feedline
