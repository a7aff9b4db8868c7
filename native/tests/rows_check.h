// SPDX-License-Identifier: Apache-2.0
// Checks for every indexer and parser of rows, or records.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "feedline/rows.h"

namespace feedline {

struct Random {
    std::uint64_t s;
    std::uint64_t next() {
        s ^= s << 13, s ^= s >> 7, s ^= s << 17;
        return s;
    }
    std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() % n); }
};

// Up to three changes.
inline std::string damaged(Random& random, std::string text, const std::vector<std::string>& pieces) {
    for (std::size_t k = random.below(4); k > 0; --k) {
        const std::size_t at = random.below(text.size() + 1);
        switch (random.below(5)) {
            case 0: text.insert(at, pieces[random.below(pieces.size())]); break;
            case 1: text.erase(at, 1 + random.below(9)); break;
            case 2: if (at < text.size()) text[at] = static_cast<char>(random.next()); break;
            case 3: text.resize(at); break;
            default: text.insert(at, text.substr(random.below(text.size() + 1), random.below(30))); break;
        }
    }
    return text;
}

template <class Indexer>
std::vector<CtfEntry> index_of(Indexer indexer, const std::string& text, Random* cuts) {
    CtfBytes found;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t n = cuts ? 1 + cuts->below(cuts->below(20) + 1) : text.size();
        const std::size_t take = std::min(n, text.size() - at);
        const std::unique_ptr<std::uint8_t[]> block(new std::uint8_t[take]);
        std::memcpy(block.get(), text.data() + at, take);
        indexer.feed(block.get(), take, found);
        at += take;
    }
    indexer.finish(found);
    std::vector<CtfEntry> entries(found.size / sizeof(CtfEntry));
    if (found.size) std::memcpy(entries.data(), found.data, found.size);
    return entries;
}

// Returns the index, and checks that it does not depend on the cuts between blocks.
template <class Indexer>
std::vector<CtfEntry> index_of(const Indexer& indexer, const std::string& text, Random& random) {
    auto entries = index_of(indexer, text, nullptr);
    const auto again = index_of(indexer, text, &random);
    CHECK(entries.size() == again.size());
    CHECK(entries.empty() || std::memcmp(entries.data(), again.data(), entries.size() * sizeof(CtfEntry)) == 0);
    std::uint64_t behind = 0;
    for (const CtfEntry& e : entries) {
        CHECK(e.offset >= behind && e.size > 0);
        behind = e.offset + e.size;
        CHECK(behind <= text.size());
    }
    return entries;
}

inline std::size_t last_of(const CtfBytes& offsets, std::size_t n) {
    CHECK(offsets.size == 8 * (n + 1));
    std::int64_t last;
    std::memcpy(&last, offsets.data + 8 * n, 8);
    return static_cast<std::size_t>(last);
}

inline void check_columns(const RowColumns& columns, const std::vector<RowField>& fields, std::size_t n) {
    static const std::size_t sizes[kRowTypes] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 1, 1};
    CHECK(columns.errors.size % sizeof(CtfErrorRecord) == 0);
    CHECK(columns.errors.size / sizeof(CtfErrorRecord) <= n);
    for (std::size_t s = 0; s < fields.size(); ++s) {
        const RowColumn& c = columns.streams[s];
        std::size_t size = sizes[static_cast<int>(fields[s].type)];
        for (const std::int64_t dim : fields[s].shape) size *= static_cast<std::size_t>(dim);
        const std::size_t samples = fields[s].ragged ? last_of(c.offsets, n) : n;
        CHECK(c.samples == samples);
        const bool string = fields[s].type == RowType::text || fields[s].type == RowType::bytes;
        CHECK(c.values.size == (string ? last_of(c.bounds, samples) : samples * size));
        const std::size_t values = string ? samples : c.values.size / sizes[static_cast<int>(fields[s].type)];
        CHECK(c.missing.size % 16 == 0 && (fields[s].optional || c.missing.size == 0));
        std::size_t missing = 0;
        for (std::size_t k = 0; k < c.missing.size; k += 16) {
            std::int64_t run[2];
            std::memcpy(run, c.missing.data + k, sizeof run);
            CHECK(run[0] >= 0 && run[1] >= 0 && static_cast<std::size_t>(run[0] + run[1]) <= values);
            missing += static_cast<std::size_t>(run[1]);
        }
        CHECK(missing <= values);
    }
}

// Checks that each row is the same alone and with the others. `pad` bytes around the text may be read.
template <class Parser>
void parse(const Parser& parser, const std::string& text, const std::vector<CtfEntry>& entries, Random& random,
           std::size_t pad) {
    std::vector<CtfEntry> rows = entries;
    if (random.below(4) == 0) {  // a hostile index: any ranges inside the text
        for (std::size_t i = random.below(5); i > 0; --i) {
            const std::size_t at = random.below(text.size() + 1);
            rows.push_back({0, at, static_cast<std::uint32_t>(random.below(text.size() - at + 1)), 1});
        }
    }
    const std::size_t n = rows.size();
    const std::unique_ptr<std::uint8_t[]> bytes(new std::uint8_t[text.size() + 2 * pad]);
    std::memset(bytes.get(), "0\"\n9{,"[random.below(6)], text.size() + 2 * pad);
    if (!text.empty()) std::memcpy(bytes.get() + pad, text.data(), text.size());
    const RowColumns all = parser.parse({bytes.get() + pad, text.size(), rows.data(), n, 0});
    CHECK(!all.outside);
    if (random.below(8) == 0) {
        const CtfEntry beyond{0, text.size() + random.below(2), 1 + static_cast<std::uint32_t>(random.below(9)), 1};
        CHECK(parser.parse({bytes.get() + pad, text.size(), &beyond, 1, 0}).outside);
        CHECK(parser.parse({bytes.get() + pad, text.size(), &beyond, 1, beyond.offset + 1}).outside);
    }
    if (all.errors.size) {
        CtfErrorRecord last;
        std::memcpy(&last, all.errors.data + all.errors.size - sizeof last, sizeof last);
        CHECK(last.byte <= text.size() + 1);
        if (last.code == static_cast<std::uint16_t>(RowError::memory_limit)) return;
    }
    check_columns(all, parser.fields(), n);
    std::vector<std::size_t> at(parser.fields().size(), 0);
    for (std::size_t i = 0; i < n; ++i) {
        const RowColumns one = parser.parse({bytes.get() + pad, text.size(), &rows[i], 1, 0});
        check_columns(one, parser.fields(), 1);
        for (std::size_t s = 0; s < at.size(); ++s) {
            const CtfBytes& mine = one.streams[s].values;
            const CtfBytes& ours = all.streams[s].values;
            CHECK(at[s] + mine.size <= ours.size);
            CHECK(mine.size == 0 || std::memcmp(ours.data + at[s], mine.data, mine.size) == 0);
            at[s] += mine.size;
        }
    }
}

}  // namespace feedline
