// Fetching: every byte equals the file's, with each backend and any state of the page cache. Cancelled works leave no
// memory, a failing byte fails only its own range, and a forked child starts over. Meant for ASan + UBSan
// (`make sanitize`) and for TSan.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "feedline/fetch.h"
#include "feedline/stage.h"
#include "check.h"

using namespace feedline;
using namespace std::chrono_literals;

namespace {

// A file of known bytes, mapped.
struct Scratch {
    explicit Scratch(std::size_t size) : bytes(size) {
        std::mt19937_64 random(size);
        for (auto& byte : bytes) byte = static_cast<std::byte>(random());
        const char* folder = std::getenv("TMPDIR");
        path = std::string(folder != nullptr ? folder : "/tmp") + "/feedline-fetch-XXXXXX";
        fd = mkstemp(path.data());
        CHECK(fd >= 0 && write(fd, bytes.data(), size) == static_cast<ssize_t>(size) && fsync(fd) == 0);
        map = static_cast<std::byte*>(mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0));
        CHECK(map != MAP_FAILED);
    }
    ~Scratch() {
        munmap(map, bytes.size());
        close(fd);
        unlink(path.c_str());
    }
    void evict() const { open()->drop(0, bytes.size()); }
    std::shared_ptr<DiskFile> open(bool direct = true, bool ask = true) const {
        DiskFile::About about;
        about.path = path;
        about.size = bytes.size();
        about.mapped = map;
        about.direct = direct;
        about.ask = ask;
        return std::make_shared<DiskFile>(about);
    }

    std::vector<std::byte> bytes;
    std::string path;
    int fd = -1;
    std::byte* map = nullptr;
};

std::vector<Fetcher::Backend> backends() {
    std::vector<Fetcher::Backend> found{Fetcher::Backend::kThreads};
    try {
        Fetcher ring(Fetcher::Backend::kRing, 4);
        CHECK(std::string(ring.backend()) == "io_uring");
        found.push_back(Fetcher::Backend::kRing);
    } catch (const std::system_error& error) {
        CHECK(error.code().value() == ENOSYS);
    }
    return found;
}

void finish(Fetcher& fetcher, const Work& work) {
    while (!fetcher.wait(work, 20ms)) {
    }
}

void test_ranges(Fetcher::Backend backend, bool direct) {
    const Scratch file(3'000'123);
    const auto pool = std::make_shared<BlockPool>(1 << 20);
    std::mt19937 random(7);
    {
        Fetcher fetcher(backend, 8);
        const auto opened = file.open(direct);
        for (int round = 0; round < 60; ++round) {
            if (round % 4 == 0) file.evict();
            if (round % 4 == 1) file.open()->read_ahead(0, 1 << 20);
            std::vector<RangeWork::Range> ranges;
            for (int i = 0; i < 5; ++i) {
                const std::uint64_t offset = random() % file.bytes.size();
                const std::uint64_t size = random() % (file.bytes.size() - offset + 1);
                ranges.push_back({opened, offset, i == 4 ? 0 : size});
            }
            const auto work = std::make_shared<RangeWork>(ranges, pool);
            fetcher.start(work);
            if (round % 7 == 0) {
                fetcher.cancel(*work);
                continue;
            }
            finish(fetcher, *work);
            for (std::size_t k = 0; k < ranges.size(); ++k) {
                const RangeWork::Result& result = work->results()[k];
                CHECK(result.error == 0);
                CHECK(ranges[k].size == 0 ||
                      std::memcmp(result.data, file.bytes.data() + ranges[k].offset, ranges[k].size) == 0);
            }
        }
    }
    CHECK(pool->in_use() == 0 && pool->idle() <= 1 << 20);
}

void test_errors(Fetcher::Backend backend) {
    const Scratch file(1 << 20);
    const auto pool = std::make_shared<BlockPool>(0);
    Fetcher fetcher(backend, 8);
    const auto opened = file.open(true, false);
    opened->fail(500'000, 500'010, EIO);
    CHECK(truncate(file.path.c_str(), 900'000) == 0);
    const auto work = std::make_shared<RangeWork>(
        std::vector<RangeWork::Range>{{opened, 0, 400'000}, {opened, 400'000, 200'000}, {opened, 800'000, 200'000}}, pool);
    fetcher.start(work);
    finish(fetcher, *work);
    CHECK(work->results()[0].error == 0);
    CHECK(work->results()[1].error == EIO && work->results()[1].at == 500'000);
    CHECK(work->results()[2].error == -1 && work->results()[2].at == 900'000);
    DiskFile::About about;
    about.path = file.path;
    about.device = 1;
    about.inode = 2;
    try {
        const DiskFile other(about);
        CHECK(false);
    } catch (const std::system_error& error) {
        CHECK(error.code().value() == ESTALE);
    }
}

// Dense rows, ragged rows and sparse rows of one file, as runs.
struct Layout {
    static constexpr std::size_t kRow = 300, kSequences = 900;

    explicit Layout(Scratch& file, std::mt19937& random) {
        std::vector<std::int64_t> offsets{0}, indptr{0};
        for (std::size_t i = 0; i < kSequences; ++i) offsets.push_back(offsets.back() + random() % 20);
        for (std::int64_t i = 0; i < offsets.back(); ++i) indptr.push_back(indptr.back() + random() % 5);
        std::size_t at = 64;
        const auto put = [&](const void* from, std::size_t bytes) {
            std::memcpy(file.bytes.data() + at, from, bytes);
            const std::byte* place = file.map + at;
            at = (at + bytes + 63) / 64 * 64;
            CHECK(at <= file.bytes.size());
            return place;
        };
        const std::vector<std::byte> noise(file.bytes.begin() + 64, file.bytes.begin() + 64 + kRow * kSequences);
        dense = {put(noise.data(), noise.size()), nullptr, kSequences};
        const auto* bounds = reinterpret_cast<const std::int64_t*>(put(offsets.data(), offsets.size() * 8));
        ragged = {put(noise.data(), static_cast<std::size_t>(offsets.back()) * 8), bounds, offsets.back()};
        const auto* rows = reinterpret_cast<const std::int64_t*>(put(indptr.data(), indptr.size() * 8));
        const std::size_t values = static_cast<std::size_t>(indptr.back());
        const auto* indices = reinterpret_cast<const std::int32_t*>(put(noise.data(), values * 4));
        sparse = {rows, indices, put(noise.data() + 7, values * 4), bounds, offsets.back(), indptr.back()};
        CHECK(pwrite(file.fd, file.bytes.data(), file.bytes.size(), 0) == static_cast<ssize_t>(file.bytes.size()));
        CHECK(fsync(file.fd) == 0);
    }
    std::vector<StageWork::Stream> streams(bool keep) const {
        return {{false, kRow, &dense, nullptr, keep, keep},
                {false, 8, &ragged, nullptr, keep, keep},
                {true, 4, nullptr, &sparse, keep, keep}};
    }

    DenseSource dense, ragged;
    SparseSource sparse;
};

// The bytes that a gather would copy: sequence `index` of each stream, one after the other.
std::vector<std::byte> content(const DenseSource& dense, const DenseSource& ragged, const SparseSource& sparse,
                               std::int64_t index) {
    std::vector<std::byte> out;
    const auto add = [&](const void* from, std::int64_t bytes) {
        const auto* at = static_cast<const std::byte*>(from);
        out.insert(out.end(), at, at + bytes);
    };
    add(dense.rows + index * 300, 300);
    add(ragged.rows + ragged.offsets[index] * 8, (ragged.offsets[index + 1] - ragged.offsets[index]) * 8);
    for (std::int64_t row = sparse.offsets[index]; row < sparse.offsets[index + 1]; ++row) {
        const std::int64_t first = sparse.indptr[row], count = sparse.indptr[row + 1] - first;
        add(&count, 8);
        add(sparse.indices + first, count * 4);
        add(sparse.values + first * 4, count * 4);
    }
    return out;
}

void test_stages(Fetcher::Backend backend, bool direct, bool keep) {
    std::mt19937 random(11);
    Scratch file(1'500'000);
    const Layout layout(file, random);
    const auto pool = std::make_shared<BlockPool>(1 << 20);
    Fetcher fetcher(backend, 16);
    const auto files = std::make_shared<MappedFiles>(MappedFiles{file.open(direct)});
    for (int round = 0; round < 40; ++round) {
        if (round % 3 != 2) file.evict();
        std::vector<std::uint32_t> slots;
        std::vector<std::int64_t> index, counts;
        for (int i = 0; i < 50; ++i) {
            slots.push_back(0);
            index.push_back(static_cast<std::int64_t>(random() % Layout::kSequences));
            const auto left = static_cast<std::int64_t>(Layout::kSequences) - index.back();
            counts.push_back(1 + static_cast<std::int64_t>(random()) % std::min<std::int64_t>(left, 1 + 30 * (round % 3)));
        }
        const Runs runs{slots.data(), index.data(), round % 2 == 0 ? nullptr : counts.data(), slots.size()};
        const auto work = std::make_shared<StageWork>(layout.streams(keep), runs, files, pool);
        fetcher.start(work);
        if (round % 9 == 4) {
            fetcher.cancel(*work);
            continue;
        }
        finish(fetcher, *work);
        CHECK(work->faults().empty());
        for (std::size_t i = 0; i < slots.size(); ++i)
            for (std::int64_t k = 0; k < work->sequences(i); ++k)
                CHECK(content(work->dense(0)[i], work->dense(1)[i], work->sparse(2)[i], k) ==
                      content(layout.dense, layout.ragged, layout.sparse, index[i] + k));
    }
}

// Only runs with a failing byte are faults.
void test_faults(Fetcher::Backend backend) {
    std::mt19937 random(12);
    Scratch file(1'500'000);
    const Layout layout(file, random);
    const auto opened = file.open(true, false);
    const std::uint64_t bad = static_cast<std::uint64_t>(layout.dense.rows - file.map) + 300 * 400 + 17;
    opened->fail(bad, bad + 1, EIO);
    Fetcher fetcher(backend, 16);
    std::vector<std::uint32_t> slots(Layout::kSequences, 0);
    std::vector<std::int64_t> index(Layout::kSequences);
    for (std::size_t i = 0; i < index.size(); ++i) index[i] = static_cast<std::int64_t>(index.size() - 1 - i);
    const auto work = std::make_shared<StageWork>(layout.streams(false), Runs{slots.data(), index.data(), nullptr, slots.size()},
                                                  std::make_shared<MappedFiles>(MappedFiles{opened}),
                                                  std::make_shared<BlockPool>(0));
    fetcher.start(work);
    finish(fetcher, *work);
    CHECK(work->faults().size() == 1);
    const StageWork::Fault fault = work->faults()[0];
    CHECK(index[fault.pick] == 400 && fault.stream == 0 && fault.error == EIO && fault.at == bad);
    CHECK(work->dense(0)[fault.pick].rows == nullptr);
}

// Offsets that decrease, or lead outside, are a fault of their run.
void test_impossible_offsets(Fetcher::Backend backend) {
    std::mt19937 random(13);
    Scratch file(1'500'000);
    const Layout layout(file, random);
    const auto offsets = static_cast<std::size_t>(reinterpret_cast<const std::byte*>(layout.ragged.offsets) - file.map);
    const std::int64_t wild[] = {-5, std::int64_t{1} << 62, INT64_MIN};
    for (const std::int64_t value : wild) {
        CHECK(pwrite(file.fd, &value, 8, static_cast<off_t>(offsets + 8 * 50)) == 8);
        Fetcher fetcher(backend, 16);
        const std::uint32_t slots[] = {0, 0, 0, 0};
        const std::int64_t index[] = {48, 49, 50, 51};
        const auto work = std::make_shared<StageWork>(layout.streams(false), Runs{slots, index, nullptr, 4},
                                                      std::make_shared<MappedFiles>(MappedFiles{file.open(true, false)}),
                                                      std::make_shared<BlockPool>(0));
        fetcher.start(work);
        finish(fetcher, *work);
        CHECK(work->faults().size() == 4);  // picks 49 and 50, in the ragged and in the sparse stream
        for (const StageWork::Fault& fault : work->faults())
            CHECK((fault.pick == 1 || fault.pick == 2) && fault.error == 0 && fault.stream != 0);
    }
}

void test_forks(Fetcher::Backend backend) {
    const Scratch file(2 << 20);
    const auto pool = std::make_shared<BlockPool>(4 << 20);
    Fetcher fetcher(backend, 4);
    const auto opened = file.open(true, false);
    const auto make = [&] {
        return std::make_shared<RangeWork>(std::vector<RangeWork::Range>{{opened, 5, (2 << 20) - 9}}, pool);
    };
    const auto check = [&](const RangeWork& work) {
        CHECK(work.results()[0].error == 0);
        CHECK(std::memcmp(work.results()[0].data, file.bytes.data() + 5, (2 << 20) - 9) == 0);
    };
    for (int round = 0; round < 5; ++round) {
        const auto before = make(), whole = make();
        fetcher.start(whole);
        finish(fetcher, *whole);
        fetcher.start(before);
        const pid_t child = fork();
        if (child == 0) {
            alarm(60);
            check(*whole);
            CHECK(before->made_before_fork() && (before->done() || !fetcher.wait(*before, 1ms)));
            const auto after = make();
            fetcher.start(after);
            finish(fetcher, *after);
            check(*after);
            fetcher.cancel(*before);
            _exit(0);
        }
        finish(fetcher, *before);
        check(*before);
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
}

void test_many_threads_wait(Fetcher::Backend backend) {
    const Scratch file(1 << 20);
    const auto pool = std::make_shared<BlockPool>(1 << 20);
    Fetcher fetcher(backend, 32);
    const auto opened = file.open(true, false);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            std::mt19937 random(static_cast<unsigned>(t));
            for (int round = 0; round < 40; ++round) {
                const std::uint64_t offset = random() % 900'000;
                const auto work =
                    std::make_shared<RangeWork>(std::vector<RangeWork::Range>{{opened, offset, 100'000}}, pool);
                fetcher.start(work);
                if (round % 5 == 0) {
                    fetcher.cancel(*work);
                    continue;
                }
                finish(fetcher, *work);
                CHECK(std::memcmp(work->results()[0].data, file.bytes.data() + offset, 100'000) == 0);
            }
        });
    for (auto& thread : threads) thread.join();
}

}  // namespace

int main() {
    for (const Fetcher::Backend backend : backends()) {
        for (const bool direct : {true, false}) {
            test_ranges(backend, direct);
            for (const bool keep : {true, false}) test_stages(backend, direct, keep);
        }
        test_errors(backend);
        test_faults(backend);
        test_impossible_offsets(backend);
        test_many_threads_wait(backend);
        test_forks(backend);
    }
    std::puts("fetch: good");
    return 0;
}
