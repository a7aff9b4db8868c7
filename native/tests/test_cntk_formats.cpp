// CBF, HTK and MLF: good input is read as written, damaged input is refused or read, and nothing outside it is read or
// written. Meant for ASan + UBSan (`make sanitize`).
//
//   test_cntk_formats [seconds = 1] [seed = 1]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "feedline/cbf.h"
#include "feedline/htk.h"
#include "feedline/mlf.h"

using namespace feedline;

namespace {

using Bytes = std::vector<std::uint8_t>;

template <class T>
void put(Bytes& out, T value) {
    const auto* from = reinterpret_cast<const std::uint8_t*>(&value);
    out.insert(out.end(), from, from + sizeof value);
}

const CbfStream kStreams[] = {{true, 4, 9}, {false, 8, 2}};

// A chunk of n sequences: sequence i has i % 3 sparse samples, and one dense sample.
Bytes chunk(std::uint32_t n, std::uint32_t& samples) {
    Bytes out;
    samples = 0;
    for (std::uint32_t i = 0; i < n; ++i) {
        put(out, std::max(i % 3, 1U));
        samples += std::max(i % 3, 1U);
    }
    for (std::uint32_t i = 0; i < n; ++i) {
        const std::uint32_t length = i % 3;
        put(out, length);
        put(out, static_cast<std::int32_t>(2 * length));
        for (std::uint32_t k = 0; k < 2 * length; ++k) put(out, static_cast<float>(k));
        for (std::uint32_t k = 0; k < 2 * length; ++k) put(out, static_cast<std::int32_t>(k % 9));
        for (std::uint32_t k = 0; k < length; ++k) put(out, std::int32_t{2});
    }
    for (std::uint32_t i = 0; i < n; ++i) {
        put(out, std::uint32_t{1});
        put(out, 0.5 * i);
        put(out, -1.0 * i);
    }
    return out;
}

struct Found {
    std::vector<std::int64_t> begin;
    std::vector<std::uint32_t> samples;
    std::vector<std::int32_t> stored;
    std::vector<CbfFault> faults;
};

// Copies all sequences that were found, into arrays of their size, as the binding does.
Found read(const Bytes& bytes, const std::vector<std::int64_t>& sizes, const std::vector<std::uint32_t>& sequences,
           const std::vector<std::uint32_t>& samples) {
    std::size_t n = 0;
    for (const std::uint32_t count : sequences) n += count;
    Found found{std::vector<std::int64_t>(2 * n), std::vector<std::uint32_t>(2 * n), std::vector<std::int32_t>(2 * n),
                std::vector<CbfFault>(sizes.size())};
    // Exactly as long as the file, so that a read beyond it is detected.
    const std::unique_ptr<std::uint8_t[]> exact(new std::uint8_t[bytes.size()]);
    std::memcpy(exact.get(), bytes.data(), bytes.size());
    const CbfChunks chunks{exact.get(), sizes.data(), sequences.data(), samples.data(), sizes.size()};
    find_cbf(chunks, kStreams, 2, n, false, found.begin.data(), found.samples.data(), found.stored.data(),
             found.faults.data());
    std::size_t rows = 0, values = 0, dense = 0;
    for (std::size_t i = 0; i < n; ++i) {
        rows += found.samples[i];
        values += static_cast<std::size_t>(found.stored[i]);
        dense += found.samples[n + i];
    }
    std::vector<std::int64_t> indptr(rows + 1);
    std::vector<std::int32_t> indices(values);
    std::vector<std::uint8_t> numbers(values * 4), out(dense * 16);
    const std::unique_ptr<bool[]> bad(new bool[n]);
    copy_cbf_sparse(exact.get(), found.begin.data(), found.samples.data(), found.stored.data(), n, 4, indptr.data(),
                    indices.data(), numbers.data(), bad.get());
    CHECK(indptr[0] == 0 && indptr[rows] == static_cast<std::int64_t>(values));
    for (std::size_t i = 0; i < rows; ++i) CHECK(indptr[i] <= indptr[i + 1]);
    copy_cbf_dense(exact.get(), found.begin.data() + n, found.samples.data() + n, n, 16, out.data());
    return found;
}

void test_cbf(std::mt19937_64& random, std::chrono::steady_clock::time_point until) {
    Bytes bytes;
    std::vector<std::int64_t> sizes;
    std::vector<std::uint32_t> sequences, samples;
    for (const std::uint32_t n : {5U, 1U, 9U}) {
        std::uint32_t total;
        const Bytes one = chunk(n, total);
        bytes.insert(bytes.end(), one.begin(), one.end());
        sizes.push_back(static_cast<std::int64_t>(one.size()));
        sequences.push_back(n);
        samples.push_back(total);
    }
    const Found sound = read(bytes, sizes, sequences, samples);
    for (const CbfFault& fault : sound.faults) CHECK(fault.code == 0);
    CHECK(sound.samples[1] == 1 && sound.stored[2] == 4 && sound.samples[15] == 1);
    // A wrong number in the table makes only its chunk bad.
    std::vector<std::uint32_t> wrong = samples;
    ++wrong[1];
    const Found lied = read(bytes, sizes, sequences, wrong);
    CHECK(lied.faults[0].code == 0 && lied.faults[2].code == 0);
    CHECK(lied.faults[1].code == static_cast<std::int32_t>(CbfError::wrong_samples));
    // Each 4 bytes replaced by each hostile number, then random bytes.
    for (std::size_t at = 0; at + 4 <= bytes.size(); at += 4) {
        for (const std::uint32_t value : {0U, 1U, 0x7FFFFFFFU, 0x80000000U, 0xFFFFFFFFU}) {
            Bytes damaged = bytes;
            std::memcpy(damaged.data() + at, &value, 4);
            read(damaged, sizes, sequences, samples);
        }
    }
    while (std::chrono::steady_clock::now() < until) {
        Bytes damaged = bytes;
        for (std::size_t n = random() % 6; n > 0; --n) damaged[random() % damaged.size()] = static_cast<std::uint8_t>(random());
        std::vector<std::int64_t> moved = sizes;
        if (random() % 4 == 0) {
            const auto shift = static_cast<std::int64_t>(random() % 40) - 20;
            if (moved[0] + shift >= 20 && moved[1] - shift >= 4) moved[0] += shift, moved[1] -= shift;
        }
        read(damaged, moved, sequences, samples);
    }
}

void test_htk(std::mt19937_64& random) {
    for (int k = 0; k < 500; ++k) {
        const std::size_t dim = 1 + random() % 4, count = random() % 20;
        const HtkKind kind = static_cast<HtkKind>(random() % 3);
        const std::vector<float> scale(dim, 2.0F), offset(dim, 1.0F);
        const HtkFrames frames{kind, random() % 2 == 0, dim, scale.data(), offset.data()};
        Bytes bytes(count * frames.frame_bytes());
        for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
        std::vector<float> out(count * dim);
        decode_htk(bytes.data(), frames, count, out.data());
        for (std::size_t i = 0; i < out.size(); ++i) {
            const std::size_t width = frames.frame_bytes() / dim;
            std::uint8_t item[4];
            for (std::size_t b = 0; b < width; ++b)
                item[b] = bytes[i * width + (frames.swapped ? width - 1 - b : b)];
            float expected = 0;
            if (kind == HtkKind::floats) {
                std::memcpy(&expected, item, 4);
            } else if (kind == HtkKind::compressed) {
                std::int16_t number;
                std::memcpy(&number, item, 2);
                expected = (static_cast<float>(number) + 1.0F) / 2.0F;
            } else {
                expected = item[0];
            }
            CHECK(std::memcmp(&out[i], &expected, 4) == 0);
        }
    }
}

const char* const kText =
    "#!MLF!#\n\"*/a/one.lab\"\n0 100000 sil[2] -0.5\n100000 5500000 sil[3]\n.\n\n#!MLF!#\r\n\"two\"\r\n0 2 x 1\r\n2 5 x "
    "3\r\n.\r\n\"three.lab\"\n0 3 sil[2] 0\n.\n";
const char* const kPieces[] = {"\"", "\n.\n", "#!MLF!#\n", "\n", " ", "  ", "\r", ".", "1e300", "nan", "-1", "99999999999",
                               "\"\"\n", "\"x\"\n", "sil[2]", "0 1 x 4294967296", "\t"};

MlfRuns parse(const std::string& text, const std::vector<MlfEntry>& entries, bool mapped) {
    const std::unique_ptr<std::uint8_t[]> exact(new std::uint8_t[text.size()]);
    std::memcpy(exact.get(), text.data(), text.size());
    std::vector<std::int64_t> begin;
    std::vector<std::uint32_t> size;
    for (const MlfEntry& entry : entries) {
        CHECK(entry.offset + entry.size <= text.size());
        begin.push_back(static_cast<std::int64_t>(entry.offset));
        size.push_back(entry.size);
    }
    const MlfParser parser(mapped ? std::vector<std::string>{"sil[2]", "sil[3]", "x"} : std::vector<std::string>{}, mapped, 9);
    MlfRuns runs = parser.parse(exact.get(), begin.data(), size.data(), begin.size());
    CHECK(runs.offsets.size() == entries.size() + 1 && runs.frames.size() == runs.classes.size());
    CHECK(static_cast<std::size_t>(runs.offsets.back()) == runs.frames.size());
    std::size_t fault = 0;
    for (std::size_t i = 0; i < entries.size(); ++i) {
        std::uint64_t frames = 0;
        for (std::int64_t k = runs.offsets[i]; k < runs.offsets[i + 1]; ++k) {
            frames += runs.frames[static_cast<std::size_t>(k)];
            CHECK(runs.classes[static_cast<std::size_t>(k)] < 9);
        }
        const bool faulty = fault < runs.faults.size() && runs.faults[fault].sequence == static_cast<std::int64_t>(i);
        if (faulty) {
            CHECK(runs.offsets[i] == runs.offsets[i + 1]);
            CHECK(static_cast<std::uint64_t>(runs.faults[fault].byte) <= text.size());
            ++fault;
        } else {
            CHECK(frames == entries[i].samples);  // what is no fault is as long as it was indexed
        }
    }
    CHECK(fault == runs.faults.size());
    return runs;
}

// The entries of a text that is fed in blocks of this size.
std::vector<MlfEntry> index(const std::string& text, std::size_t block, MlfError& error) {
    MlfIndexer indexer(false);
    std::vector<MlfEntry> found;
    for (std::size_t at = 0; at < text.size(); at += block) {
        const std::size_t n = std::min(block, text.size() - at);
        const std::unique_ptr<std::uint8_t[]> exact(new std::uint8_t[n]);
        std::memcpy(exact.get(), text.data() + at, n);
        indexer.feed(exact.get(), n, found);
    }
    indexer.finish(found);
    error = indexer.error();
    return found;
}

void test_mlf(std::mt19937_64& random, std::chrono::steady_clock::time_point until) {
    MlfError error;
    const std::vector<MlfEntry> sound = index(kText, 7, error);
    CHECK(error == MlfError::none && sound.size() == 3);
    CHECK(sound[0].samples == 55 && sound[1].samples == 5 && sound[2].samples == 3);
    CHECK(sound[0].key == name_key("a/one") && sound[1].key == name_key("*/two.plp"));
    CHECK(parse(kText, sound, true).faults.empty());
    CHECK(parse(kText, sound, false).faults.size() == 1);  // the first has no classes
    while (std::chrono::steady_clock::now() < until) {
        std::string text = kText;
        for (std::size_t n = random() % 6; n > 0; --n) {
            const std::size_t at = random() % (text.size() + 1);
            switch (random() % 4) {
                case 0: text.insert(at, kPieces[random() % std::size(kPieces)]); break;
                case 1: text.erase(at, random() % 9); break;
                case 2: if (at < text.size()) text[at] = static_cast<char>(random()); break;
                default: text.insert(at, text.substr(random() % (text.size() + 1), random() % 40));
            }
        }
        MlfError whole_error, cut_error;
        const std::vector<MlfEntry> whole = index(text, text.size() + 1, whole_error);
        const std::vector<MlfEntry> cut = index(text, 1 + random() % 9, cut_error);
        CHECK(whole_error == cut_error && whole.size() == cut.size());
        for (std::size_t i = 0; i < whole.size(); ++i)
            CHECK(std::memcmp(&whole[i], &cut[i], sizeof(MlfEntry)) == 0);
        parse(text, whole, true);
        parse(text, whole, false);
    }
}

}  // namespace

int main(int count, char** arguments) {
    const double seconds = count > 1 ? std::atof(arguments[1]) : 1;
    std::mt19937_64 random(count > 2 ? static_cast<std::uint64_t>(std::atoll(arguments[2])) : 1);
    const auto half = std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds / 2));
    test_htk(random);
    test_cbf(random, std::chrono::steady_clock::now() + half);
    test_mlf(random, std::chrono::steady_clock::now() + half);
    std::puts("cntk formats: ok");
    return 0;
}
