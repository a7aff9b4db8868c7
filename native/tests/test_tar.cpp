// Tar archives: good ones are read as written, damaged ones are refused or read, and nothing outside them is read or
// written. Meant for ASan + UBSan (`make sanitize`).
//
//   test_tar [seconds = 1] [seed = 1]
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "feedline/tar.h"

using namespace feedline;

namespace {

void put_sum(char* header) {
    std::memset(header + 148, ' ', 8);
    unsigned sum = 0;
    for (int i = 0; i < 512; ++i) sum += static_cast<unsigned char>(header[i]);
    std::snprintf(header + 148, 8, "%06o", sum);
}

void put_member(std::string& out, const std::string& name, const std::string& data, char type = '0') {
    char header[512] = {};
    std::memcpy(header, name.data(), std::min<std::size_t>(name.size(), 100));
    std::snprintf(header + 124, 12, "%011zo", data.size());
    header[156] = type;
    std::memcpy(header + 257, "ustar\00000", 8);
    put_sum(header);
    out.append(header, sizeof header);
    out += data;
    out.append((512 - data.size() % 512) % 512, '\0');
}

std::string pax(const std::string& key, const std::string& value) {
    std::size_t n = key.size() + value.size() + 3;
    std::string length = std::to_string(n + 1);
    while (length.size() + n != std::stoul(length)) length = std::to_string(length.size() + n);
    return length + " " + key + "=" + value + "\n";
}

std::string archive() {
    std::string out;
    for (int i = 0; i < 5; ++i) {
        const std::string key = "d/" + std::to_string(i);
        put_member(out, key + ".jpg", std::string(static_cast<std::size_t>(700 * i), 'j'));
        put_member(out, key + ".X.npy", "numbers");
        if (i == 2) put_member(out, "d/", "", '5');
        put_member(out, key + ".cls", std::to_string(i));
    }
    const std::string name = std::string(150, 'n') + ".jpg";
    put_member(out, "././@LongLink", name + '\0', 'L');
    put_member(out, name.substr(0, 100), "long");
    put_member(out, "PaxHeader", pax("path", std::string(150, 'n') + ".cls") + pax("size", "3"), 'x');
    put_member(out, "short", "pax");
    put_member(out, std::string(150, 'n').substr(0, 90) + ".cls", "other key");
    out.append(10240, '\0');
    return out;
}

struct Found {
    std::vector<TarEntry> entries;
    TarError error;
    std::vector<std::int64_t> spans;
    std::vector<TarFault> faults;
};

// Checks that a stream of blocks has the entries, and the error, of the file. Each block is overwritten by the next.
void check_stream(const std::string& bytes, std::size_t step, const TarIndexer& file, const std::vector<TarEntry>& entries) {
    std::vector<std::uint8_t> block;
    std::size_t at = 0;
    TarIndexer indexer([&]() -> std::pair<const std::uint8_t*, std::size_t> {
        const std::size_t n = std::min(131 * step, bytes.size() - at);
        if (n == 0) return {nullptr, 0};
        block.assign(bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.begin() + static_cast<std::ptrdiff_t>(at + n));
        at += n;
        return {block.data(), n};
    });
    std::vector<TarEntry> streamed;
    while (!indexer.done()) indexer.next(step, streamed);
    CHECK(indexer.error() == file.error() && indexer.error_byte() == file.error_byte());
    CHECK(streamed.size() == entries.size());
    CHECK(entries.empty() || std::memcmp(streamed.data(), entries.data(), entries.size() * sizeof(TarEntry)) == 0);
}

// Reads an archive as the index and a reader do. The memory is as long as the archive, so a read beyond it is detected.
Found read(const std::string& bytes, std::FILE* file, std::size_t step) {
    std::rewind(file);
    CHECK(ftruncate(fileno(file), 0) == 0);
    CHECK(pwrite(fileno(file), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
    Found found;
    TarIndexer indexer(fileno(file), bytes.size());
    while (!indexer.done()) indexer.next(step, found.entries);
    found.error = indexer.error();
    check_stream(bytes, step, indexer, found.entries);
    const std::unique_ptr<std::uint8_t[]> exact(new std::uint8_t[bytes.size() + (bytes.empty() ? 1 : 0)]);
    if (!bytes.empty()) std::memcpy(exact.get(), bytes.data(), bytes.size());
    std::vector<std::int64_t> begin, sizes;
    std::uint64_t before = 0;
    for (const TarEntry& entry : found.entries) {
        CHECK(entry.offset >= before && entry.offset + entry.size <= bytes.size());
        before = entry.offset + entry.size;
        begin.push_back(static_cast<std::int64_t>(entry.offset));
        sizes.push_back(entry.size);
    }
    const std::size_t n = begin.size();
    found.spans.resize(4 * n);
    std::string keys;
    std::vector<std::int64_t> bounds(n + 1);
    CHECK(find_tar_members(exact.get(), bytes.size(), begin.data(), sizes.data(), n, {"jpg", "cls"}, found.spans.data(),
                           found.faults, &keys, bounds.data()) == nullptr);
    for (std::size_t i = 0; i < 2 * n; ++i)
        CHECK(0 <= found.spans[2 * i] && found.spans[2 * i] <= found.spans[2 * i + 1] &&
              found.spans[2 * i + 1] <= static_cast<std::int64_t>(bytes.size()));
    CHECK(bounds[n] == static_cast<std::int64_t>(keys.size()));
    for (const TarEntry& entry : found.entries) list_tar_members(exact.get() + entry.offset, entry.size);
    return found;
}

void test_names() {
    const auto split = [](const char* name) {
        std::string_view key, suffix;
        return split_tar_name(name, key, suffix) ? std::string(key) + "|" + std::string(suffix) : std::string("-");
    };
    CHECK(split("a.b") == "a|b" && split("d.x/a.b.C") == "d.x/a|b.C" && split("./a.b") == "./a|b");
    CHECK(split("a") == "-" && split("d.x/a") == "-" && split(".a.b") == "-" && split("a.") == "a|");
    CHECK(split("d/.a") == "d/|a" && split("d.x/.a") == "-" && split("/.a") == "/|a" && split("p.x/d/.a") == "p.x/d/|a");
    CHECK(split("__meta__") == "-" && split("__m.x__/a.b") == "-" && split("__m_/a.b") == "__m_/a|b");
}

void test_keys() {
    CHECK(tar_key("0") == 0 && tar_key("00017") == 17 && tar_key("9999999999999999999") == 9999999999999999999U);
    CHECK(tar_key("") != 0 && tar_key("1/2") != 12 && tar_key("00000000000000000017") != 17);
}

void test_sound(std::FILE* file) {
    const std::string whole = archive();
    for (const std::size_t step : {std::size_t{1}, std::size_t{3}, std::size_t{1000}}) {
        const Found found = read(whole, file, step);
        CHECK(found.error == TarError::none && found.entries.size() == 7);
        CHECK(found.faults.size() == 1 && found.faults[0].code == static_cast<int>(TarError::missing));
        CHECK(found.spans[2 * 4 + 1] - found.spans[2 * 4] == 2800);
        CHECK(found.spans[2 * (7 + 5) + 1] - found.spans[2 * (7 + 5)] == 3);
    }
    // Concatenated archives. A cut one has all samples before the cut.
    CHECK(read(whole + whole, file, 10).entries.size() == 14);
    for (std::size_t size = 0; size < whole.size(); size += 101) {
        const Found found = read(whole.substr(0, size), file, 10);
        CHECK(found.error == TarError::none && found.entries.size() <= 7);
    }
}

void test_refused(std::FILE* file) {
    for (const auto& [type, code] : {std::pair{'1', TarError::link}, std::pair{'2', TarError::link},
                                     std::pair{'S', TarError::sparse}, std::pair{'M', TarError::volume}}) {
        std::string bytes = archive().substr(0, 512);
        put_member(bytes, "a.jpg", "", type);
        CHECK(read(bytes, file, 10).error == code);
    }
    for (const char* key : {"path", "size", "GNU.sparse.major"}) {
        std::string bytes;
        put_member(bytes, "PaxHeader", pax(key, "1"), 'g');
        CHECK(read(bytes, file, 10).error == TarError::global);
    }
    std::string large = archive();
    large[124] = static_cast<char>(0x80);  // base 256: more than there is
    std::memset(large.data() + 125, 0, 11);
    large[128] = 1;
    put_sum(large.data());
    const Found found = read(large, file, 10);
    CHECK(found.error == TarError::none && found.entries.size() == 1);
    CHECK(found.faults.size() == 1 && found.faults[0].code == static_cast<int>(TarError::cut));
}

void test_damaged(std::mt19937_64& random, std::chrono::steady_clock::time_point until, std::FILE* file) {
    const std::string whole = archive();
    while (std::chrono::steady_clock::now() < until) {
        std::string bytes = whole;
        const std::size_t changes = 1 + random() % 4;
        for (std::size_t k = 0; k < changes; ++k) {
            // Mostly in a header, whose checksum is then corrected.
            const std::size_t block = random() % (bytes.size() / 512);
            bytes[512 * block + random() % 512] = static_cast<char>(random() % 3 == 0 ? 0xFFU : random() % 256);
            if (random() % 4 != 0 && bytes[512 * block] != 0) put_sum(bytes.data() + 512 * block);
        }
        if (random() % 4 == 0) bytes.resize(random() % bytes.size());
        read(bytes, file, 1 + random() % 9);
    }
}

}  // namespace

int main(int argc, char** argv) {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
    std::mt19937_64 random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
    std::FILE* file = std::tmpfile();
    CHECK(file != nullptr);
    test_names();
    test_keys();
    test_sound(file);
    test_refused(file);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(static_cast<int>(seconds * 1000));
    test_damaged(random, until, file);
    std::fclose(file);
    std::puts("tar: ok");
    return 0;
}
