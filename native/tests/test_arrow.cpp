// Heads of Arrow's messages: damaged ones are refused or parsed, and nothing outside them is read. Meant for ASan +
// UBSan (`make sanitize`).
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>
#include <unistd.h>

#include "feedline/arrow.h"
#include "check.h"

using namespace feedline;

// A flatbuffer as Arrow's writers lay it out, as far as needed: tables after their vtables.
struct Writer {
    std::string bytes;

    template <class T>
    void put(T value) {
        bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    template <class T>
    void set(std::size_t at, T value) {
        std::memcpy(&bytes[at], &value, sizeof value);
    }
    // Adds a table with fields of 8 bytes each, of which `fields` marks the absent ones. Returns its place.
    std::size_t table(const std::vector<bool>& fields) {
        while (bytes.size() % 8 != 4 * (fields.size() % 2)) bytes += '\0';
        const std::size_t vtable = bytes.size();
        put<std::uint16_t>(static_cast<std::uint16_t>(4 + 2 * fields.size()));
        put<std::uint16_t>(static_cast<std::uint16_t>(8 + 8 * fields.size()));
        for (std::size_t i = 0; i < fields.size(); ++i)
            put<std::uint16_t>(fields[i] ? static_cast<std::uint16_t>(8 + 8 * i) : std::uint16_t{0});
        while (bytes.size() % 8) bytes += '\0';
        const std::size_t at = bytes.size();
        put<std::int32_t>(static_cast<std::int32_t>(at - vtable));
        bytes.append(4 + 8 * fields.size(), '\0');
        return at;
    }
    static std::size_t field(std::size_t table, std::size_t i) { return table + 8 + 8 * i; }
    void refer(std::size_t from, std::size_t to) { set<std::uint32_t>(from, static_cast<std::uint32_t>(to - from)); }
    std::size_t pairs(const std::vector<std::int64_t>& numbers) {
        while (bytes.size() % 8 != 4) bytes += '\0';
        const std::size_t at = bytes.size();
        put<std::uint32_t>(static_cast<std::uint32_t>(numbers.size() / 2));
        for (std::int64_t n : numbers) put<std::int64_t>(n);
        return at;
    }
};

// The head of a batch, with its marker.
static std::string head(std::int64_t rows, std::int64_t body, const std::vector<std::int64_t>& nodes,
                        const std::vector<std::int64_t>& buffers, int kind = kArrowBatch, bool compressed = false) {
    Writer out;
    out.put<std::uint32_t>(0);
    const std::size_t message = out.table({true, true, true, true});
    out.refer(0, message);
    out.set<std::uint8_t>(Writer::field(message, 1), static_cast<std::uint8_t>(kind));
    out.set<std::int64_t>(Writer::field(message, 3), body);
    const std::size_t batch = out.table({true, true, true, compressed});
    out.refer(Writer::field(message, 2), batch);
    out.set<std::int64_t>(Writer::field(batch, 0), rows);
    const std::size_t first = out.pairs(nodes);
    out.refer(Writer::field(batch, 1), first);
    const std::size_t second = out.pairs(buffers);
    out.refer(Writer::field(batch, 2), second);
    while (out.bytes.size() % 8) out.bytes += '\0';
    Writer whole;
    whole.put<std::uint32_t>(0xFFFFFFFFu);
    whole.put<std::int32_t>(static_cast<std::int32_t>(out.bytes.size()));
    return whole.bytes + out.bytes;
}

// Parses a copy, so that AddressSanitizer detects a read beyond either end. Returns whether it was accepted.
static bool parses(const std::string& text, std::int64_t body, ArrowLayout& found) {
    const std::unique_ptr<std::uint8_t[]> bytes(new std::uint8_t[text.size()]);
    std::memcpy(bytes.get(), text.data(), text.size());
    try {
        found = parse_arrow_batch(bytes.get(), text.size(), body);
    } catch (const ArrowError&) {
        return false;
    }
    CHECK(found.rows >= 0 && found.nodes.size() <= text.size() && found.buffers.size() <= text.size());
    for (std::size_t i = 0; i < found.buffers.size(); i += 2)
        CHECK(found.buffers[i] >= 0 && found.buffers[i + 1] >= 0 && found.buffers[i] + found.buffers[i + 1] <= body);
    return true;
}

static void test_figures() {
    ArrowLayout found;
    CHECK(parses(head(7, 64, {7, 0, 9, 2}, {0, 8, 8, 56}), 64, found));
    CHECK(found.rows == 7 && !found.compressed && found.nodes == (std::vector<std::int64_t>{7, 0, 9, 2}));
    CHECK(found.buffers == (std::vector<std::int64_t>{0, 8, 8, 56}));
    CHECK(parses(head(7, 64, {}, {}, kArrowBatch, true), 64, found) && found.compressed);
    CHECK(!parses(head(7, 64, {7, 0}, {0, 65}), 64, found));
    CHECK(!parses(head(7, 64, {7, 8}, {}), 64, found));
    CHECK(!parses(head(-1, 64, {}, {}), 64, found));
    CHECK(!parses(head(7, 64, {}, {}), 63, found));
    CHECK(!parses(head(7, 64, {}, {}, kArrowDictionary), 64, found));
}

struct File {
    explicit File(const std::string& text) : file(std::tmpfile()) {
        CHECK(file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size());
        std::fflush(file);
    }
    ~File() { std::fclose(file); }
    std::FILE* file;
};

static bool walks(const std::string& text, ArrowStream& found) {
    const File file(text);
    try {
        found = walk_arrow(fileno(file.file), text.size(), 0);
    } catch (const ArrowError& error) {
        CHECK(error.byte <= text.size());
        return false;
    }
    std::int64_t at = 0;
    for (const ArrowMessage& message : found.messages) {
        CHECK(message.start == at && message.rows >= 0);
        at += message.head + message.body;
    }
    CHECK(static_cast<std::size_t>(at) <= text.size());
    return true;
}

static std::string stream() {
    const std::string end("\xFF\xFF\xFF\xFF\0\0\0\0", 8), body(64, 'x');
    return head(7, 64, {7, 0}, {0, 8, 8, 56}) + body + head(5, 64, {5, 0}, {0, 0, 0, 64}) + body + end + "what follows";
}

// A walk calls `reach` for exactly the bytes that it reads, before it reads them, but not for bytes that are readable.
static void test_reach() {
    const std::string text = stream();
    const File file(text);
    std::uint64_t asked = 0, end = 0;
    const Reach reach = [&](std::uint64_t a, std::uint64_t b) {
        CHECK(a < b && b <= text.size() && (a < asked || b > end));
        asked = a, end = b;
        return std::pair{a, b};
    };
    const ArrowStream found = walk_arrow(fileno(file.file), text.size(), 0, true, reach);
    CHECK(found.messages.size() == 2 && end != 0);
    std::string heads;
    for (const ArrowMessage& message : found.messages)
        heads += text.substr(static_cast<std::size_t>(message.start), static_cast<std::size_t>(message.head));
    CHECK(found.heads == heads);
    CHECK(walk_arrow(fileno(file.file), text.size(), 0).heads.empty());
}

static void test_walk() {
    ArrowStream found;
    const std::string text = stream();
    CHECK(walks(text, found) && found.ended && found.messages.size() == 2 && found.messages[1].rows == 5);
    const std::size_t one = head(7, 64, {7, 0}, {0, 8, 8, 56}).size() + 64;
    for (std::size_t n = 0; n < 2 * one; ++n) CHECK(walks(text.substr(0, n), found) == (n % one == 0) && !found.ended);
}

static void test_damage() {
    std::mt19937 rng(5);
    const std::string sound = head(7, 64, {7, 0, 9, 2}, {0, 8, 8, 56}), whole = stream();
    ArrowLayout layout;
    ArrowStream found;
    for (std::size_t n = 0; n < sound.size(); ++n) parses(sound.substr(0, n), 64, layout);
    for (int round = 0; round < 100000; ++round) {
        const bool walk = round % 20 == 0;
        std::string text = walk ? whole : sound;
        for (unsigned i = 1 + rng() % 4; i > 0 && !text.empty(); --i) {
            const std::size_t at = rng() % text.size();
            switch (rng() % 5) {
                case 0: text[at] = static_cast<char>(text[at] ^ (1 << rng() % 8)); break;
                case 1: text[at] = static_cast<char>(rng()); break;
                case 2: text.erase(at, 1 + rng() % 4); break;
                case 3: text.insert(at, std::string(1 + rng() % 30, static_cast<char>(rng()))); break;
                default: text.insert(at, text.substr(rng() % text.size(), rng() % 60)); break;
            }
        }
        if (walk)
            walks(text, found);
        else
            parses(text, 64, layout);
    }
}

int main() {
    test_figures();
    test_walk();
    test_reach();
    test_damage();
    std::puts("arrow: ok");
    return 0;
}
