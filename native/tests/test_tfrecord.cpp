// TFRecord files: good records are read as written, any other bytes are read or refused, and nothing outside them is
// read or written. Checksums are the same on every processor. Run under sanitizers.
//   test_tfrecord [seconds] [seed]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../src/crc32c_variants.h"
#include "check.h"
#include "feedline/crc32c.h"
#include "feedline/cpu.h"
#include "feedline/tfrecord.h"
#include "rows_check.h"

namespace {

using namespace feedline;

std::string varint(std::uint64_t v) {
    std::string out;
    for (; v >= 0x80; v >>= 7) out += static_cast<char>(v | 0x80);
    return out + static_cast<char>(v);
}
std::string tag(unsigned number, unsigned wire) { return varint(number << 3 | wire); }
std::string bytes(unsigned number, const std::string& body) { return tag(number, 2) + varint(body.size()) + body; }

template <class T>
std::string raw(T v) {
    std::string out(sizeof v, '\0');
    std::memcpy(out.data(), &v, sizeof v);
    return out;
}

std::string ints(const std::vector<std::int64_t>& values, bool packed) {
    std::string list;
    for (const std::int64_t v : values)
        list += (packed ? "" : tag(1, 0)) + varint(static_cast<std::uint64_t>(v));
    return bytes(3, packed ? bytes(1, list) : list);
}

std::string floats(const std::vector<float>& values, bool packed) {
    std::string list;
    for (const float v : values) list += (packed ? "" : tag(1, 5)) + raw(v);
    return bytes(2, packed ? bytes(1, list) : list);
}

std::string strings(const std::vector<std::string>& values) {
    std::string list;
    for (const std::string& v : values) list += bytes(1, v);
    return bytes(1, list);
}

std::string entry(const std::string& name, const std::string& value) { return bytes(1, bytes(1, name) + bytes(2, value)); }

std::uint32_t masked(const std::string& data) {
    return masked_crc32c(reinterpret_cast<const std::uint8_t*>(data.data()), data.size());
}

std::string record(const std::string& message) {
    const std::string length = raw(std::uint64_t{message.size()});
    return length + raw(masked(length)) + message + raw(masked(message));
}

const std::vector<RowField> kFields{{RowType::int16, {2}, false},
                                    {RowType::float32, {}, true},
                                    {RowType::text, {}, false},
                                    {RowType::float64, {3}, true},
                                    {RowType::bytes, {}, true}};
const std::vector<ExampleSource> kSources{{"n", false, true, std::string("\1\0\2\0", 4)},
                                          {"x", false, false, ""},
                                          {"t", false, true, "none"},
                                          {"s", true, false, ""},
                                          {"b", true, true, ""}};

std::string message(int i) {
    const std::string context = entry("n", ints({i, -i}, i % 2 == 0)) + entry("other", floats({1}, true)) +
                                entry("x", floats(std::vector<float>(static_cast<std::size_t>(i), 0.5F), i % 3 == 0)) +
                                (i % 4 ? entry("t", strings({"\xC3\xA9" + std::to_string(i)})) : "");
    const std::string step = bytes(1, i % 2 ? floats({1, 2, 3}, true) : ints({1, 2, 300}, true));
    const std::string lists = entry("s", step + step) + entry("b", bytes(1, strings({"a"})) + bytes(1, strings({""})));
    return bytes(1, context) + (i % 5 ? "" : tag(9, 3) + bytes(7, "skipped") + tag(9, 4)) + bytes(2, lists);
}

template <class T>
T value(const CtfBytes& from, std::size_t at) {
    T v;
    CHECK((at + 1) * sizeof v <= from.size);
    std::memcpy(&v, from.data + at * sizeof v, sizeof v);
    return v;
}

RowColumns parsed(const ExampleParser& parser, const std::string& text, const std::vector<CtfEntry>& entries) {
    return parser.parse(
        {reinterpret_cast<const std::uint8_t*>(text.data()), text.size(), entries.data(), entries.size(), 0});
}

std::vector<RowError> errors(const RowColumns& columns) {
    std::vector<RowError> found;
    for (std::size_t k = 0; k < columns.errors.size / sizeof(CtfErrorRecord); ++k)
        found.push_back(static_cast<RowError>(value<CtfErrorRecord>(columns.errors, k).code));
    return found;
}

// view() refers to the strings that parse() copies. Bad records have empty strings.
void check_views(const std::string& text, const std::vector<CtfEntry>& entries) {
    const ExampleParser parser({{RowType::text, {}, false}, {RowType::bytes, {}, false}},
                               {{"t", false, false, ""}, {"n", false, true, "fallback"}}, std::uint64_t{1} << 30);
    const Rows rows{reinterpret_cast<const std::uint8_t*>(text.data()), text.size(), entries.data(), entries.size(), 0};
    const RowColumns copied = parser.parse(rows), seen = parser.view(rows);
    CHECK(copied.errors.size == seen.errors.size && seen.streams[0].bounds.size == 0);
    CHECK(seen.errors.size == 0 || std::memcmp(copied.errors.data, seen.errors.data, seen.errors.size) == 0);
    CHECK(seen.streams[0].values.size == 16 * entries.size() && seen.streams[0].samples == entries.size());
    CHECK(seen.streams[1].bounds.size == copied.streams[1].bounds.size);  // fallbacks are nowhere in the text
    const RowColumn& strings = copied.streams[0];
    for (std::size_t i = 0; i < entries.size(); ++i) {
        const auto from = value<std::int64_t>(strings.bounds, i), to = value<std::int64_t>(strings.bounds, i + 1);
        const auto first = value<std::int64_t>(seen.streams[0].values, 2 * i);
        const auto last = value<std::int64_t>(seen.streams[0].values, 2 * i + 1);
        CHECK(last - first == to - from && first >= 0 && last <= static_cast<std::int64_t>(text.size()));
        CHECK(to == from || std::memcmp(strings.values.data + from, text.data() + first,
                                        static_cast<std::size_t>(to - from)) == 0);
    }
}

void test_sound() {
    constexpr std::size_t kCount = 12;
    std::string text;
    for (std::size_t i = 0; i < kCount; ++i) text += record(message(static_cast<int>(i)));
    const auto parser = std::make_shared<ExampleParser>(kFields, kSources, std::uint64_t{1} << 20);
    const auto entries = index_of(RecordIndexer(parser, 1), text, nullptr);
    CHECK(entries.size() == kCount);
    const RowColumns columns = parsed(*parser, text, entries);
    CHECK(columns.errors.size == 0);
    check_columns(columns, kFields, kCount);
    check_views(text, entries);
    const auto& [n, x, t, s, b] = std::tie(columns.streams[0], columns.streams[1], columns.streams[2],
                                           columns.streams[3], columns.streams[4]);
    for (std::size_t i = 0; i < kCount; ++i) {
        CHECK(entries[i].key == i && entries[i].samples == i);
        CHECK(value<std::int16_t>(n.values, 2 * i + 1) == -static_cast<int>(i));
        CHECK(value<std::int64_t>(x.offsets, i + 1) - value<std::int64_t>(x.offsets, i) == static_cast<int>(i));
        CHECK(value<std::int64_t>(s.offsets, i + 1) == static_cast<int>(2 * i + 2));
        CHECK(value<double>(s.values, 6 * i + 2) == (i % 2 ? 3 : 300));
        CHECK(value<std::int64_t>(b.offsets, i + 1) == static_cast<int>(2 * i + 2));
        const auto from = value<std::int64_t>(t.bounds, i), to = value<std::int64_t>(t.bounds, i + 1);
        const std::string got(reinterpret_cast<const char*>(t.values.data) + from, static_cast<std::size_t>(to - from));
        CHECK(got == (i % 4 ? "\xC3\xA9" + std::to_string(i) : "none"));
    }
}

// Of two entries with one key the last one counts, and of two kinds the last one. Pieces of one kind are merged.
void test_merged() {
    const std::string twice = entry("n", ints({7, 8}, true)) + entry("n", ints({3}, true) + floats({1}, true) +
                                                                               ints({4}, false) + ints({5}, true));
    const std::string pieces = bytes(1, bytes(1, "x") + bytes(2, floats({1}, true)) + bytes(2, floats({2}, false)));
    const std::string text = record(bytes(1, twice) + bytes(1, pieces) + bytes(2, entry("s", "")));
    const ExampleParser parser(kFields, kSources, std::uint64_t{1} << 20);
    const RowColumns columns = parsed(parser, text, index_of(RecordIndexer(nullptr, -1), text, nullptr));
    CHECK(columns.errors.size == 0);
    CHECK(value<std::int16_t>(columns.streams[0].values, 0) == 4 && value<std::int16_t>(columns.streams[0].values, 1) == 5);
    CHECK(columns.streams[1].samples == 2 && value<float>(columns.streams[1].values, 1) == 2);
}

void test_refused() {
    const ExampleParser parser({{RowType::uint8, {}, false}, {RowType::float32, {2}, true}},
                               {{"n", false, false, ""}, {"x", false, true, ""}}, std::uint64_t{1} << 20);
    const auto with = [](const std::string& n, const std::string& x) {
        return record(bytes(1, entry("n", n) + (x.empty() ? "" : entry("x", x))));
    };
    const std::string good = with(ints({255}, true), floats({1, 2}, true));
    std::string flipped = good;
    flipped[20] ^= 1;
    const std::string rows[] = {good, flipped, with(ints({256}, false), ""), with(ints({-1}, true), ""),
                                with(ints({1, 2}, true), ""), with(ints({}, true), ""), with(floats({1}, true), ""), with("", ""),
                                record(""), with(ints({1}, true), floats({1, 2, 3}, true)), record("\x0a\x7f"),
                                with(bytes(3, bytes(1, "\xff")), ""), record(tag(1, 4)), record(tag(3, 3) + tag(4, 4)), good};
    std::string text;
    for (const std::string& row : rows) text += row;
    const RowError expected[] = {RowError::message_crc, RowError::out_of_range, RowError::out_of_range,
                                 RowError::too_many_values, RowError::too_few_values, RowError::feature_kind,
                                 RowError::missing, RowError::missing, RowError::uneven_values, RowError::bad_message,
                                 RowError::bad_message, RowError::bad_message, RowError::bad_message};
    const auto found = errors(parsed(parser, text, index_of(RecordIndexer(nullptr, -1), text, nullptr)));
    CHECK(found == std::vector<RowError>(std::begin(expected), std::end(expected)));
}

// A file that is cut anywhere, or has a wrong length, ends with one bad record, with the size of its head.
void test_ends() {
    const std::string one = record(message(1)), text = one + one + one;
    const ExampleParser parser(kFields, kSources, std::uint64_t{1} << 20);
    for (std::size_t at = 1; at < text.size(); ++at) {
        const std::string cut = text.substr(0, at);
        RecordIndexer indexer(nullptr, -1);
        CtfBytes entries;
        indexer.feed(reinterpret_cast<const std::uint8_t*>(cut.data()), cut.size(), entries);
        indexer.finish(entries);
        CHECK((indexer.error() != RowError::none) == (at < kRecordHead));
        const auto found = index_of(RecordIndexer(nullptr, -1), cut, nullptr);
        CHECK(found.size() == (at < kRecordHead ? 0 : (at + one.size() - 1) / one.size()));
        const auto wrong = errors(parsed(parser, cut, found));
        CHECK(wrong == std::vector<RowError>(at % one.size() && at >= kRecordHead, RowError::record_cut));
    }
    std::string broken = text;
    broken[one.size() + 3] ^= 4;
    const auto found = index_of(RecordIndexer(nullptr, -1), broken, nullptr);
    CHECK(found.size() == 2 && found[1].size == kRecordHead && found[1].key == 1);
    CHECK(errors(parsed(parser, broken, found)) == std::vector<RowError>{RowError::length_crc});
    const std::string length = raw(std::uint64_t{1} << 33);
    const std::string large = one + length + raw(masked(length)) + one;
    CHECK(errors(parsed(parser, large, index_of(RecordIndexer(nullptr, -1), large, nullptr))) ==
          std::vector<RowError>{RowError::record_too_long});
}

void test_checksums(Random& random) {
    CHECK(masked("") == 0xA282EAD8u && crc32c("123456789", 9) == 0xE3069283u);
#if defined(FEEDLINE_X86) || defined(FEEDLINE_AARCH64)
#ifdef FEEDLINE_X86
    if (!cpu().sse41) return;
    const auto update = crc32c_update_sse42;
#else
    if (!cpu().crc32) return;
    const auto update = crc32c_update_armv8;
#endif
    for (int k = 0; k < 2000; ++k) {
        const std::size_t n = random.below(k % 8 == 0 ? 12000 : 1000), skip = random.below(9);
        const std::unique_ptr<std::uint8_t[]> data(new std::uint8_t[n + skip]);
        for (std::size_t i = 0; i < n + skip; ++i) data[i] = static_cast<std::uint8_t>(random.next());
        const auto state = static_cast<std::uint32_t>(random.next());
        CHECK(update(state, data.get() + skip, n) == crc32c_update_portable(state, data.get() + skip, n));
    }
#else
    (void)random;
#endif
}

void any_bytes(Random& random) {
    static const std::vector<std::string> pieces{
        entry("n", ints({1, 2}, true)), entry("x", floats({1}, false)), entry("t", strings({"\xff"})), tag(1, 3), tag(1, 4),
        tag(0, 2), tag(5, 6), varint(~std::uint64_t{0}), std::string(11, '\xff'), bytes(1, ""), bytes(2, ""),
        std::string(200, static_cast<char>(3 << 3 | 3)), bytes(1, bytes(1, "s")), record(""), std::string("\0", 1)};
    std::string text;
    for (std::size_t k = random.below(5); k > 0; --k) {
        std::string one = message(static_cast<int>(random.below(5)));
        if (random.below(2)) one = damaged(random, one, pieces);
        std::vector<FeatureInfo> found;
        const std::unique_ptr<std::uint8_t[]> exact(new std::uint8_t[one.size()]);
        std::memcpy(exact.get(), one.data(), one.size());
        list_features(exact.get(), one.size(), found);
        text += record(one);
    }
    if (random.below(4) == 0) text = damaged(random, text, pieces);
    const std::uint64_t limit = random.below(6) == 0 ? random.below(600) : std::uint64_t{1} << 30;
    const auto parser = std::make_shared<ExampleParser>(kFields, kSources, limit);
    const RecordIndexer indexer(random.below(2) ? parser : nullptr, static_cast<int>(random.below(6)) - 1);
    const auto entries = index_of(indexer, text, random);
    check_views(text, entries);
    parse(*parser, text, entries, random, 0);
}

}  // namespace

int main(int argc, char** argv) {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 2;
    Random random{argc > 2 ? std::strtoull(argv[2], nullptr, 0) | 1 : 1};
    for (int i = 0; i < 20; ++i) random.next();
    test_sound();
    test_merged();
    test_refused();
    test_ends();
    test_checksums(random);
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    std::uint64_t rounds = 0;
    do {
        for (int i = 0; i < 50; ++i, ++rounds) any_bytes(random);
    } while (Clock::now() < end);
    std::printf("%llu rounds, no violation\n", static_cast<unsigned long long>(rounds));
    return 0;
}
