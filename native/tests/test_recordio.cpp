// RecordIO files: good ones are read as written, a damaged record costs only itself, and nothing outside a file is read
// or written. Meant for ASan + UBSan (`make sanitize`).
//
//   test_recordio [seconds = 1] [seed = 1]
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "feedline/recordio.h"

using namespace feedline;

namespace {

constexpr std::uint32_t kMagic = 0xced7230aU;

template <class T>
std::string raw(T value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string part(std::uint32_t kind, const std::string& bytes) {
    std::string out = raw(kMagic) + raw(kind << 29 | static_cast<std::uint32_t>(bytes.size())) + bytes;
    return out + std::string((4 - out.size() % 4) % 4, '\0');
}

// A record as MXNet's writer splits it.
std::string record(const std::string& bytes) {
    std::string out;
    std::size_t begun = 0;
    for (std::size_t at = 0; at + 4 <= bytes.size(); at += 4)
        if (bytes.compare(at, 4, raw(kMagic)) == 0) {
            out += part(begun == 0 ? 1 : 2, bytes.substr(begun, at - begun));
            begun = at + 4;
        }
    return out + part(begun == 0 ? 0 : 3, bytes.substr(begun));
}

std::string packed(const std::vector<float>& labels, std::uint64_t id, const std::string& image) {
    const bool one = labels.size() == 1;
    std::string out = raw(one ? 0U : static_cast<std::uint32_t>(labels.size())) + raw(one ? labels[0] : 0.0F) + raw(id) +
                      raw(std::uint64_t{0});
    for (std::size_t i = 0; !one && i < labels.size(); ++i) out += raw(labels[i]);
    return out + image;
}

std::string image_of(std::size_t i) {
    std::string image(3 * i, static_cast<char>('a' + i));
    if (i % 3 == 1) image += std::string((4 - image.size() % 4) % 4, 'x') + raw(kMagic) + "y" + raw(kMagic);
    if (i % 6 == 4) image += std::string((4 - image.size() % 4) % 4, 'x') + raw(kMagic) + raw(kMagic);
    return image;
}

std::vector<float> labels_of(std::size_t i) { return std::vector<float>(1 + i % 2, static_cast<float>(i)); }

constexpr std::size_t kCount = 12;

std::string file_of(bool ranges) {
    std::string out;
    if (ranges) out += record(packed({13, 15}, 0, ""));
    for (std::size_t i = 0; i < kCount; ++i) out += record(packed(labels_of(i), i, image_of(i + 1)));
    if (ranges) out += record(packed({1, 7}, 0, "")) + record(packed({7, 13}, 0, ""));
    return out;
}

struct Read {
    std::vector<RecordIOEntry> entries;
    RecordIOError error;
    std::vector<std::vector<float>> labels;
    std::vector<std::string> images;
    std::vector<RecordIOFault> faults;
};

// Reads a file as the index and a reader do. The memory is as long as the file, so a read beyond it is detected.
Read read(const std::string& bytes, std::FILE* file, std::size_t step, std::uint32_t labels_less = 0) {
    std::rewind(file);
    CHECK(ftruncate(fileno(file), 0) == 0);
    CHECK(pwrite(fileno(file), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
    Read found;
    RecordIOIndexer indexer(fileno(file), bytes.size());
    while (!indexer.done()) indexer.next(step, found.entries);
    found.error = indexer.error();
    const std::unique_ptr<std::uint8_t[]> exact(new std::uint8_t[bytes.size() + (bytes.empty() ? 1 : 0)]);
    if (!bytes.empty()) std::memcpy(exact.get(), bytes.data(), bytes.size());
    std::vector<std::int64_t> begin, sizes, bounds{0};
    std::uint64_t before = 0;
    for (const RecordIOEntry& entry : found.entries) {
        CHECK(entry.offset >= before && entry.size > 0 && entry.offset + entry.size <= bytes.size());
        before = entry.offset + entry.size;
        begin.push_back(static_cast<std::int64_t>(entry.offset));
        sizes.push_back(entry.size);
        bounds.push_back(bounds.back() + std::max(entry.samples, labels_less) - labels_less);
    }
    const std::size_t n = begin.size();
    const std::unique_ptr<float[]> labels(new float[static_cast<std::size_t>(bounds[n])]);
    RecordIOImages images;
    CHECK(read_recordio(exact.get(), bytes.size(), begin.data(), sizes.data(), n, bounds.data(), labels.get(), images,
                        found.faults) == nullptr);
    const bool joined = !images.bounds.empty();
    CHECK(joined ? images.spans.empty() && images.bounds.size() == n + 1 : images.spans.size() == 2 * n);
    for (std::size_t i = 0; i < n; ++i) {
        const std::int64_t from = joined ? images.bounds[i] : images.spans[2 * i];
        const std::int64_t to = joined ? images.bounds[i + 1] : images.spans[2 * i + 1];
        const auto size = static_cast<std::int64_t>(joined ? images.data.size() : bytes.size());
        CHECK(0 <= from && from <= to && to <= size);
        const auto* text = reinterpret_cast<const char*>(joined ? images.data.data() : exact.get());
        found.images.emplace_back(text + from, static_cast<std::size_t>(to - from));
        found.labels.emplace_back(labels.get() + bounds[i], labels.get() + bounds[i + 1]);
    }
    return found;
}

void check_whole(const Read& found, std::size_t first, std::size_t count, std::size_t entry) {
    for (std::size_t i = first; i < first + count; ++i, ++entry) {
        CHECK(found.images[entry] == image_of(i + 1));
        CHECK(found.labels[entry] == labels_of(i));
    }
}

void test_sound(std::FILE* file) {
    for (const bool ranges : {false, true})
        for (const std::size_t step : {std::size_t{1}, std::size_t{5}, std::size_t{1000}}) {
            const Read found = read(file_of(ranges), file, step);
            CHECK(found.error == RecordIOError::none && found.entries.size() == kCount && found.faults.empty());
            for (std::size_t i = 0; i < kCount; ++i) CHECK(found.entries[i].key == i + (ranges ? 1 : 0));
            check_whole(found, 0, kCount, 0);
        }
    // Places in the file, if no record has several parts. Pictures without bytes are samples where there are no ranges.
    const Read plain = read(record(packed({1}, 0, "")) + record(packed({2, 3}, 0, "abcde")), file, 9);
    CHECK(plain.faults.empty() && plain.images == (std::vector<std::string>{"", "abcde"}));
    CHECK(read("", file, 9).entries.empty() && read("", file, 9).error == RecordIOError::none);
    for (const char* text : {"abc", "a text that is no RecordIO file at all"})
        CHECK(read(text, file, 9).error == RecordIOError::bad_magic);
}

// Each damage of one record leaves all the others as they are, and the number of records, too.
void test_one_record(std::FILE* file) {
    const std::string whole = file_of(false);
    std::vector<std::size_t> starts;
    for (const RecordIOEntry& entry : read(whole, file, 99).entries) starts.push_back(entry.offset);
    starts.push_back(whole.size());
    for (std::size_t i = 0; i < kCount; ++i)
        for (std::size_t byte = 0; byte < 4; ++byte)
            for (const int bit : {0, 3, 7}) {
                std::string bytes = whole;
                bytes[starts[i] + byte] = static_cast<char>(bytes[starts[i] + byte] ^ 1 << bit);  // the magic number
                const Read found = read(bytes, file, 4);
                CHECK(found.error == RecordIOError::none && found.entries.size() == kCount);
                CHECK(found.faults.size() == 1 && found.faults[0].record == static_cast<int>(i));
                CHECK(found.faults[0].code == static_cast<int>(RecordIOError::bad_magic));
                check_whole(found, 0, i, 0);
                check_whole(found, i + 1, kCount - i - 1, i + 1);
            }
    for (std::size_t i = 0; i < kCount; ++i)
        for (const int change : {4, 8, 400, -4, -8, -24}) {
            std::string bytes = whole;
            std::uint32_t head;
            std::memcpy(&head, bytes.data() + starts[i] + 4, 4);
            if (static_cast<int>(head & 0x1fffffff) + change < 0) continue;
            head += static_cast<std::uint32_t>(change);
            std::memcpy(bytes.data() + starts[i] + 4, &head, 4);
            const Read found = read(bytes, file, 4);
            CHECK(found.entries.size() == kCount && found.faults.size() == 1);
            CHECK(found.faults[0].record == static_cast<int>(i));
            CHECK(found.faults[0].code != static_cast<int>(RecordIOError::labels));
            check_whole(found, 0, i, 0);
            check_whole(found, i + 1, kCount - i - 1, i + 1);
        }
    // A cut file has all records before the cut.
    for (std::size_t size = 8; size < whole.size(); ++size) {
        const Read found = read(whole.substr(0, size), file, 10);
        std::size_t before = 0;
        while (starts[before + 1] <= size) ++before;
        CHECK(found.error == RecordIOError::none && found.entries.size() >= before);
        CHECK(found.entries.size() - found.faults.size() >= before);
        check_whole(found, 0, before, 0);
    }
    // Other numbers of labels than those of the index.
    const Read fewer = read(whole, file, 9, 1);
    CHECK(fewer.faults.size() == kCount);
    for (const RecordIOFault& fault : fewer.faults)
        CHECK(fault.code == static_cast<int>(RecordIOError::labels) && fault.got == fault.expected + 1);
    // A flag of more labels than there are bytes.
    const Read flag = read(record(std::string(24, '\xff')) + record("short") + record(packed({1}, 0, "x")), file, 9);
    CHECK(flag.faults.size() == 2 && flag.entries.size() == 3 && flag.images[2] == "x");
    for (const RecordIOFault& fault : flag.faults) CHECK(fault.code == static_cast<int>(RecordIOError::header));
}

void test_damaged(std::mt19937_64& random, std::chrono::steady_clock::time_point until, std::FILE* file) {
    const std::string plain = file_of(false), faces = file_of(true);
    std::uint64_t rounds = 0;
    for (; rounds < 10000 || std::chrono::steady_clock::now() < until; ++rounds) {
        std::string bytes = random() % 2 == 0 ? plain : faces;
        for (std::size_t k = 1 + random() % 4; k > 0; --k) {
            const std::size_t at = random() % bytes.size() / (random() % 2 == 0 ? 4 : 1) * 4 % bytes.size();
            switch (random() % 5) {
                case 0: bytes[at] = static_cast<char>(random()); break;
                case 1: bytes.insert(at, raw(kMagic) + raw(static_cast<std::uint32_t>(random() % 8 << 29 | random() % 64))); break;
                case 2: bytes.erase(at, 1 + random() % 9); break;
                case 3: bytes[at] = static_cast<char>(0xFF); break;
                default: bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 40)); break;
            }
            if (bytes.empty()) bytes = "x";
        }
        if (random() % 4 == 0) bytes.resize(random() % bytes.size());
        const Read found = read(bytes, file, 1 + random() % 9, static_cast<std::uint32_t>(random() % 8 == 0));
        const Read again = read(bytes, file, 1 + random() % 9);
        CHECK(found.entries.size() == again.entries.size() && found.error == again.error);
    }
    std::printf("%llu damaged files\n", static_cast<unsigned long long>(rounds));
}

}  // namespace

int main(int argc, char** argv) {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
    std::mt19937_64 random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
    std::FILE* file = std::tmpfile();
    CHECK(file != nullptr);
    test_sound(file);
    test_one_record(file);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(static_cast<int>(seconds * 1000));
    test_damaged(random, until, file);
    std::fclose(file);
    std::puts("recordio: ok");
    return 0;
}
