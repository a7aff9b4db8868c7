// SPDX-License-Identifier: Apache-2.0
// Mutates CTF texts and runs the indexer and the parser over them, in the sanitizer build.
//
//   fuzz_ctf [seconds = 3] [seed = 1]
//
// Deterministic for a seed until the time is over. Besides the checks of the sanitizers it checks that entries are
// inside the file, in order and apart, that any cut into blocks gives the same entries, that columns, offsets and
// errors are consistent, that the vectorised parser equals the portable one bit for bit, and that sequences parsed one
// by one equal all parsed at once. A violation prints the text in C escapes and aborts.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../src/ctf_parse_job.h"
#include "feedline/cpu.h"
#include "feedline/ctf.h"

namespace {

using namespace feedline;

struct Random {
    std::uint64_t state;
    std::uint64_t next() {
        state ^= state << 13;
        state ^= state >> 7;
        return state ^= state << 17;
    }
    std::size_t below(std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(next() % n); }
};

const char* const kSeeds[] = {
    "|A 1 2 3 |B 0:1\n|A 4 5 6 |B 1:2 2:3\n",
    "0 |A 1 2 3 |B 0:1\n0 |A 3 4\n1 |A 5 6 7|B 2:1\r\n1 |B 3:-1e-3 |A 0\n",
    "0\t|B 178:1 |# BOS\t|A 14 |# flight\t|C 2:1\n0\t|B 479:1 |# i\n12345678 |B 9:0.5|A|C\n",
    "|A 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 7 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 255 |B\n",
    "|A 0.123456 -1.5e-7 +17. 123456789012345678901234567890 1e40 7e-46 16777217.0000001 |B 1:1E+5\n",
    "\xEF\xBB\xBF \n\t|A .5 5.e3 nan |B 0:-inf\n\n |A 1\n",
    "18446744073709551615 |A 1\n18446744073709551615 |A 2\n7 |A 3 |B 1:1\n",
    "|A 9007199254740993 0.00000000000000000000000000001 1.00000017881393432617187499 |B 99999999999999999999:1\n",
};
const char* const kPieces[] = {
    "|", "||", "\n", "\n\n", " ", "\t", ":", "-", "+", "e", "E5", ".", "0", "9", "|A", "|B ", "|C", "|#", "nan", "inf",
    "0 0 0 0 0 0 0 0 ", "1234567890123456789012345", "\r", "\xC3\xA9", "|Bx", "00000000", "e-", "1e999999999999",
};

std::string mutated(Random& random) {
    std::string text = kSeeds[random.below(std::size(kSeeds))];
    if (random.below(4) == 0) text += kSeeds[random.below(std::size(kSeeds))];
    if (random.below(64) == 0) {
        while (text.size() < 9000) text += text;  // beyond one batch of masks
    }
    for (std::size_t n = random.below(8); n > 0; --n) {
        const std::size_t at = random.below(text.size() + 1);
        switch (random.below(6)) {
            case 0: text.insert(at, kPieces[random.below(std::size(kPieces))]); break;
            case 1: text.erase(at, 1 + random.below(9)); break;
            case 2: if (at < text.size()) text[at] = static_cast<char>(random.next()); break;
            case 3: if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << random.below(8))); break;
            case 4: text.insert(at, text.substr(random.below(text.size() + 1), random.below(40))); break;
            default: text.resize(at); break;
        }
    }
    return text;
}

const std::string* current = nullptr;

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "violated: %s\ntext: \"", what);
    for (const unsigned char c : *current) {
        if (c >= ' ' && c < 127 && c != '"' && c != '\\') {
            std::fputc(c, stderr);
        } else {
            std::fprintf(stderr, "\\%03o", c);
        }
    }
    std::fprintf(stderr, "\"\n");
    std::abort();
}

struct Index {
    std::vector<CtfEntry> entries;
    CtfError error;
    std::uint64_t error_byte;
    bool operator==(const Index& other) const {
        return error == other.error && error_byte == other.error_byte && entries.size() == other.entries.size() &&
               (entries.empty() ||
                std::memcmp(entries.data(), other.entries.data(), entries.size() * sizeof(CtfEntry)) == 0);
    }
};

// Blocks are copied so that AddressSanitizer detects a read beyond any of their ends.
Index index_of(const std::string& text, const std::string& main, bool skip, bool lenient, Random* cuts) {
    CtfIndexer indexer(main, skip, lenient);
    CtfBytes found;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t n = cuts ? 1 + cuts->below(cuts->below(20) + 1) : text.size();
        const std::size_t take = n < text.size() - at ? n : text.size() - at;
        const std::unique_ptr<std::uint8_t[]> block(new std::uint8_t[take]);
        std::memcpy(block.get(), text.data() + at, take);
        indexer.feed(block.get(), take, found);
        at += take;
    }
    indexer.finish(found);
    Index result{std::vector<CtfEntry>(found.size / sizeof(CtfEntry)), indexer.error(), indexer.error_byte()};
    if (found.size) std::memcpy(result.entries.data(), found.data, found.size);
    return result;
}

bool same(const CtfBytes& a, const CtfBytes& b) {
    return a.size == b.size && (a.size == 0 || std::memcmp(a.data, b.data, a.size) == 0);
}

struct Input {
    std::unique_ptr<std::uint8_t[]> bytes;  // exactly 64 bytes on either side
    const std::uint8_t* text;
    Input(const std::string& source, Random& random) : bytes(new std::uint8_t[source.size() + 128]) {
        const std::uint8_t fill = static_cast<std::uint8_t>("0 |\n9"[random.below(5)]);
        std::memset(bytes.get(), fill, source.size() + 128);
        std::memcpy(bytes.get() + 64, source.data(), source.size());
        text = bytes.get() + 64;
    }
};

void check_columns(const CtfColumns& columns, const std::vector<CtfField>& fields, std::size_t n) {
    require(columns.valid.size == 0 || columns.valid.size == n, "one validity a sequence");
    require(columns.errors.size % sizeof(CtfErrorRecord) == 0, "whole error records");
    require(columns.errors.size > 0 || columns.valid.size == 0, "invalid sequences say why");
    for (std::size_t s = 0; s < fields.size(); ++s) {
        const CtfColumn& c = columns.streams[s];
        const std::size_t real = fields[s].float64 ? 8 : 4;
        if (c.offsets.size == 0) {
            require(c.samples == n, "no offsets only where every sequence has one sample");
        } else {
            require(c.offsets.size == (n + 1) * 8, "n + 1 offsets");
            std::vector<std::int64_t> offsets(n + 1);
            std::memcpy(offsets.data(), c.offsets.data, c.offsets.size);
            require(offsets[0] == 0, "offsets begin at 0");
            require(offsets[n] == static_cast<std::int64_t>(c.samples), "offsets end at the samples");
            for (std::size_t i = 0; i < n; ++i) {
                require(offsets[i] <= offsets[i + 1], "offsets never decrease");
                if (columns.valid.size && columns.valid.data[i] == 0)
                    require(offsets[i] == offsets[i + 1], "an invalid sequence has no samples");
            }
        }
        const auto values_of = static_cast<std::int64_t>(c.samples) * (fields[s].sparse ? 1 : fields[s].dim);
        require(c.missing.size % 16 == 0 && (fields[s].fill == CtfFill::optional || c.missing.size == 0),
                "pairs of missing values");
        std::int64_t behind = 0;
        for (std::size_t at = 0; at < c.missing.size; at += 16) {
            std::int64_t pair[2];
            std::memcpy(pair, c.missing.data + at, sizeof pair);
            require(pair[0] >= behind && pair[1] > 0, "missing values in order");
            behind = pair[0] + pair[1];
        }
        require(behind <= values_of, "missing values among the values");
        if (!fields[s].sparse) {
            require(c.values.size == c.samples * static_cast<std::size_t>(fields[s].dim) * real, "dense rows");
            continue;
        }
        require(c.indptr.size == (c.samples + 1) * 8, "indptr per sample");
        std::vector<std::int64_t> indptr(c.samples + 1);
        std::memcpy(indptr.data(), c.indptr.data, c.indptr.size);
        require(indptr[0] == 0, "indptr begins at 0");
        for (std::size_t i = 0; i < c.samples; ++i) require(indptr[i] <= indptr[i + 1], "indptr never decreases");
        const auto nnz = static_cast<std::size_t>(indptr[c.samples]);
        require(c.indices.size == nnz * 4 && c.values.size == nnz * real, "an index and a value each");
        for (std::size_t i = 0; i < nnz; ++i) {
            std::int32_t index;
            std::memcpy(&index, c.indices.data + 4 * i, 4);
            require(index >= 0 && index < fields[s].dim, "indices inside the dimension");
        }
    }
}

void one_round(Random& random) {
    const std::string text = mutated(random);
    current = &text;
    const bool skip = random.below(4) == 0, lenient = random.below(3) == 0;
    const std::string main = random.below(3) == 0 ? "A" : "";
    const Index whole = index_of(text, main, skip, lenient, nullptr);
    require(whole == index_of(text, main, skip, lenient, &random), "a cut changes nothing");
    std::uint64_t behind = 0;
    for (const CtfEntry& e : whole.entries) {
        require(e.offset >= behind && e.size > 0 && e.samples > 0, "entries apart and not empty");
        behind = e.offset + e.size;
        require(behind <= text.size(), "entries inside the file");
    }

    std::vector<CtfField> fields{{"A", static_cast<std::int64_t>(1 + random.below(12)), false, random.below(2) == 0},
                                 {"B", static_cast<std::int64_t>(1 + random.below(500)), true, random.below(2) == 0}};
    if (random.below(4) == 0) fields.push_back({"C", 5, true, false});
    if (random.below(4) == 0) fields.erase(fields.begin() + 1);
    const std::uint64_t limit = random.below(8) == 0 ? random.below(2000) : std::uint64_t{1} << 40;
    const std::int64_t allowed = random.below(2) ? -1 : static_cast<std::int64_t>(random.below(9));

    std::vector<CtfEntry> entries(whole.entries.begin(), whole.entries.end());
    if (random.below(4) == 0) {  // a hostile index: any ranges inside the text
        for (std::size_t i = random.below(5); i > 0; --i) {
            const std::size_t at = random.below(text.size() + 1);
            const auto size = static_cast<std::uint32_t>(random.below(text.size() - at + 1));
            entries.push_back({0, at, size, static_cast<std::uint32_t>(random.below(4))});
        }
    }
    const std::size_t n = entries.size();
    const Input input(text, random);
    for (CtfField& field : fields) field.fill = static_cast<CtfFill>(random.below(3));
    const CtfParser parser(fields, main.empty() ? -1 : 0, lenient, limit);
    const CtfColumns all = parser.parse(input.text, text.size(), entries.data(), n, 0, allowed);
    check_columns(all, fields, n);
    // If cpu() chooses the portable parser, this compares it with itself.
    const CtfColumns plain =
        parser.parse_with(ctf_parse_portable, input.text, text.size(), entries.data(), n, 0, allowed);
    if (limit >= std::uint64_t{1} << 40 && random.below(8) == 0) {  // outside the text
        std::vector<CtfEntry> beyond = entries;
        beyond.push_back({0, random.next(), static_cast<std::uint32_t>(random.next()), 1});
        const CtfEntry& last = beyond.back();
        const bool outside = last.offset > text.size() || last.size > text.size() - last.offset;
        const CtfColumns got = parser.parse(input.text, text.size(), beyond.data(), n + 1, 0, -1);
        require(got.outside == outside, "an entry outside the text is told");
    }
    require(same(all.valid, plain.valid) && same(all.errors, plain.errors), "all machines judge alike");
    require(all.errors_left == plain.errors_left, "all machines count errors alike");
    for (std::size_t s = 0; s < fields.size(); ++s) {
        const CtfColumn &a = all.streams[s], &b = plain.streams[s];
        require(same(a.values, b.values) && same(a.indices, b.indices), "all machines read the same numbers");
        require(same(a.indptr, b.indptr) && same(a.offsets, b.offsets), "all machines find the same lengths");
        require(same(a.missing, b.missing), "all machines miss the same");
    }
    if (allowed >= 0 || limit < std::uint64_t{1} << 40) return;

    std::vector<std::uint64_t> rows(fields.size(), 0);
    std::vector<std::size_t> values(fields.size(), 0);
    for (std::size_t i = 0; i < n; ++i) {
        const CtfColumns one = parser.parse(input.text, text.size(), &entries[i], 1, 0, -1);
        const bool good = all.valid.size == 0 || all.valid.data[i] != 0;
        require((one.valid.size == 0) == good, "valid alone, valid among all");
        for (std::size_t s = 0; s < fields.size(); ++s) {
            const CtfBytes& mine = one.streams[s].values;
            const CtfBytes& ours = all.streams[s].values;
            require(values[s] + mine.size <= ours.size, "as many values alone as among all");
            require(mine.size == 0 || std::memcmp(ours.data + values[s], mine.data, mine.size) == 0,
                    "the same values alone and among all");
            values[s] += mine.size;
            rows[s] += one.streams[s].samples;
        }
    }
    for (std::size_t s = 0; s < fields.size(); ++s) require(rows[s] == all.streams[s].samples, "the same samples");
}

}  // namespace

int main(int argc, char** argv) {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 3;
    Random random{argc > 2 ? std::strtoull(argv[2], nullptr, 0) | 1 : 1};
    for (int i = 0; i < 20; ++i) random.next();
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    std::uint64_t rounds = 0;
    do {
        for (int i = 0; i < 100; ++i, ++rounds) one_round(random);
    } while (Clock::now() < end);
    std::printf("%llu rounds, no violation\n", static_cast<unsigned long long>(rounds));
    return 0;
}
