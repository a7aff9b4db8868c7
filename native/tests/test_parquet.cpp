// Parquet's footers and page headers: damaged ones are refused or parsed, and nothing outside them is read. Meant for
// ASan + UBSan (`make sanitize`).
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>

#include "feedline/parquet.h"
#include "check.h"

using namespace feedline;

// Structures of the compact protocol, as far as needed.
struct Writer {
    std::string bytes;
    int last = 0;

    Writer& head(int id, int type) {
        bytes += static_cast<char>((id - last) << 4 | type);
        last = id;
        return *this;
    }
    void varint(std::uint64_t n) {
        for (; n >= 128; n >>= 7) bytes += static_cast<char>(n | 128);
        bytes += static_cast<char>(n);
    }
    Writer& number(int id, int type, std::int64_t n) {
        head(id, type).varint(static_cast<std::uint64_t>(n) << 1 ^ static_cast<std::uint64_t>(n >> 63));
        return *this;
    }
    Writer& text(int id, const std::string& s) {
        head(id, 8).varint(s.size());
        bytes += s;
        return *this;
    }
    Writer& structure(int id, const Writer& inner) {
        head(id, 12);
        bytes += inner.bytes + '\0';
        return *this;
    }
    Writer& list(int id, const std::string& items, std::size_t count) {
        head(id, 9);
        bytes += static_cast<char>((count < 15 ? count : 15) << 4 | 12);
        if (count >= 15) varint(count);
        bytes += items;
        return *this;
    }
};

static std::string footer(int groups, int columns, std::int64_t nulls = 2) {
    std::string all;
    for (int g = 0; g < groups; ++g) {
        std::string chunks;
        for (int c = 0; c < columns; ++c) {
            Writer statistics, meta, chunk;
            statistics.text(1, "largest").number(3, 6, nulls).text(5, "most").head(7, 1);
            meta.number(1, 5, 4).number(4, 5, 1).number(5, 6, 100 * g + c).number(6, 6, 2000).number(7, 6, 1000);
            meta.number(9, 6, 4 + c).number(11, 6, c % 2).structure(12, statistics);
            chunk.number(2, 6, 4).structure(3, meta);
            chunks += chunk.bytes + '\0';
        }
        Writer group;
        group.list(1, chunks, columns).number(2, 6, 7).number(3, 6, 10 + g).number(7, 4, g);
        all += group.bytes + '\0';
    }
    Writer top;
    top.number(1, 5, 2).number(3, 6, 99).list(4, all, groups).text(6, "a writer");
    return top.bytes + '\0';
}

// Parses a copy, so that AddressSanitizer detects a read beyond either end. Returns whether it was accepted.
static bool parses(const std::string& text, ParquetFooter& found) {
    const std::unique_ptr<std::uint8_t[]> bytes(new std::uint8_t[text.size()]);
    std::memcpy(bytes.get(), text.data(), text.size());
    try {
        found = parse_parquet_footer(bytes.get(), text.size());
    } catch (const ParquetError& error) {
        CHECK(error.byte <= text.size());
        return false;
    }
    CHECK(found.columns.size() == found.rows.size() * found.width);
    CHECK(found.columns.size() <= text.size());
    for (const ParquetColumn& column : found.columns)
        CHECK(column.values >= 0 && column.uncompressed >= 0 && column.compressed >= 0 && column.begin >= 0 &&
              -1 <= column.nulls && column.nulls <= column.values);
    return true;
}

static bool page_parses(const std::string& text, ParquetPage& page) {
    const std::unique_ptr<std::uint8_t[]> bytes(new std::uint8_t[text.size()]);
    std::memcpy(bytes.get(), text.data(), text.size());
    try {
        if (!parse_parquet_page(bytes.get(), text.size(), page)) return false;
    } catch (const ParquetError& error) {
        CHECK(error.byte <= text.size());
        return false;
    }
    CHECK(page.header <= text.size() && page.compressed >= 0 && page.uncompressed >= 0 && page.values >= 0);
    return true;
}

static void test_figures() {
    ParquetFooter found;
    CHECK(parses(footer(3, 20), found));
    CHECK(found.rows.size() == 3 && found.width == 20 && found.rows[2] == 12);
    const ParquetColumn& one = found.columns[45];
    CHECK(one.values == 205 && one.uncompressed == 2000 && one.compressed == 1000 && one.begin == 1);
    CHECK(one.nulls == 2);
    for (const std::int64_t wrong : {std::int64_t{-3}, std::int64_t{206}, std::numeric_limits<std::int64_t>::max()}) {
        ParquetFooter other;
        CHECK(parses(footer(3, 20, wrong), other) && other.columns[45].nulls == -1);
    }
    CHECK(parses(footer(0, 0), found) && found.rows.empty());
}

static std::string page() {
    Writer data, header;
    data.number(1, 5, 1000).number(2, 5, 0);
    header.number(1, 5, 0).number(2, 5, 4000).number(3, 5, 900).structure(5, data);
    return header.bytes + '\0';
}

static void test_pages() {
    ParquetPage found{};
    const std::string whole = page();
    CHECK(page_parses(whole + "what follows", found));
    CHECK(found.header == whole.size() && found.values == 1000 && found.compressed == 900 && found.uncompressed == 4000);
    for (std::size_t n = 0; n < whole.size(); ++n) CHECK(!page_parses(whole.substr(0, n), found));
}

static void test_damage() {
    std::mt19937 rng(5);
    const std::string sound[] = {footer(2, 3), footer(1, 17), page()};
    ParquetFooter found;
    ParquetPage header{};
    for (const std::string& text : sound)
        for (std::size_t n = 0; n < text.size(); ++n) parses(text.substr(0, n), found);
    for (int round = 0; round < 100000; ++round) {
        std::string text = sound[rng() % 3];
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
        parses(text, found);
        page_parses(text, header);
    }
}

int main() {
    test_figures();
    test_pages();
    test_damage();
    std::puts("parquet: ok");
    return 0;
}
