#include "feedline/fetch.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>

#include "fetch_ring.h"
#include "system.h"

namespace feedline {

// A read this long keeps a disk busy as well as a longer one, and several of them share the work of one chunk.
constexpr std::size_t kReadBytes = std::size_t{1} << 20;
// Enough long reads in flight for any disk; more would only compete for memory bandwidth.
constexpr std::size_t kMaxBytesInFlight = std::size_t{32} << 20;
// Cached pages between two missing ones: to read them again costs less than another request.
constexpr std::size_t kGapPages = 32;
// Threads of the pool: more do not help the disk, and cost processor time.
constexpr unsigned kMaxThreads = 32;

static constexpr std::uint64_t down(std::uint64_t offset) { return offset / kFetchAlign * kFetchAlign; }
static constexpr std::uint64_t up(std::uint64_t offset) { return down(offset + kFetchAlign - 1); }

// ---- memory ---------------------------------------------------------------------------------------------

// Bytes of a pool to request as huge pages: for reading ahead in order, or of a whole shuffle.
static constexpr std::size_t kHugeBytes = std::size_t{160} << 20;

BlockPool::BlockPool(std::size_t keep_bytes) : keep_bytes_(keep_bytes), pid_(getpid()) {}

BlockPool::~BlockPool() {
    for (const Block& block : free_) munmap(block.data, block.bytes);
}

std::shared_ptr<std::byte> BlockPool::take(std::size_t bytes) {
    Block block{nullptr, std::max<std::size_t>(up(bytes), kFetchAlign)};
    const std::size_t limit = block.bytes + block.bytes / 2;  // much larger blocks are kept for larger requests
    if (pid_ == getpid()) {  // in a child the lock may be cached by a thread of the parent
        const std::lock_guard lock(mutex_);
        auto best = free_.end();
        for (auto it = free_.begin(); it != free_.end(); ++it)
            if (it->bytes >= block.bytes && it->bytes <= limit && (best == free_.end() || it->bytes < best->bytes))
                best = it;
        if (best != free_.end()) {
            block = *best;
            free_bytes_ -= block.bytes;
            *best = free_.back();
            free_.pop_back();
        }
        used_bytes_ += block.bytes;
    }
    if (block.data == nullptr) {
        void* memory = mmap(nullptr, block.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            if (pid_ == getpid()) {
                const std::lock_guard lock(mutex_);
                used_bytes_ -= block.bytes;
            }
            throw std::bad_alloc();
        }
        block.data = static_cast<std::byte*>(memory);
        // A disk fills huge pages with fewer, longer transfers, and copies out of them look up fewer addresses: 1.4
        // times the rows per second in order. Windows are used rarely, so with huge pages they would wait longer for
        // their first use, on a virtual machine whose host has yet to find the memory. This is only advice, and the
        // kernel may have no huge pages.
        if (in_use() + idle() <= kHugeBytes) advise_huge_pages(memory, block.bytes);
    }
    return {block.data, [pool = shared_from_this(), block](std::byte*) { pool->give(block); }};
}

void BlockPool::give(Block block) {
    if (pid_ == getpid()) {
        const std::lock_guard lock(mutex_);
        used_bytes_ -= block.bytes;
        if (free_bytes_ + block.bytes <= keep_bytes_) {
            free_bytes_ += block.bytes;
            free_.push_back(block);
            return;
        }
    }
    munmap(block.data, block.bytes);
}

std::size_t BlockPool::in_use() const {
    if (pid_ != getpid()) return 0;
    const std::lock_guard lock(mutex_);
    return used_bytes_;
}

std::size_t BlockPool::idle() const {
    if (pid_ != getpid()) return 0;
    const std::lock_guard lock(mutex_);
    return free_bytes_;
}

// ---- files ----------------------------------------------------------------------------------------------

static int open_file(const std::string& path, int flags) {
    int fd;
    do fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags);
    while (fd < 0 && errno == EINTR);
    return fd;
}

// Some file systems accept the flag but refuse the reads.
static bool reads_directly(int fd) {
    void* memory = mmap(nullptr, kFetchAlign, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    const bool good = pread(fd, memory, kFetchAlign, 0) > 0;
    munmap(memory, kFetchAlign);
    return good;
}

DiskFile::DiskFile(const About& about)
    : path_(about.path),
      size_(about.size),
      mapped_(about.mapped),
      first_(about.first),
      ask_(about.ask),
      share_(about.share) {
    const auto fail = [&](int error) {
        if (fd_ >= 0) close(fd_);
        throw std::system_error(error, std::generic_category(), path_);
    };
    const auto is_expected = [&](const struct stat& file) {
        const bool any = about.device == 0 && about.inode == 0;
        const auto device = static_cast<std::uint64_t>(file.st_dev);  // signed on macOS
        return S_ISREG(file.st_mode) && (any || (device == about.device && file.st_ino == about.inode));
    };
    // Checked before it is opened, as opening a device may have side effects, and after, as it may have been replaced.
    struct stat found;
    if (stat(path_.c_str(), &found) != 0) fail(errno);
    if (!is_expected(found)) fail(ESTALE);
    if (about.direct && !share_ && direct_flag() != 0) fd_ = open_file(path_, direct_flag());
    direct_ = fd_ >= 0;
    if (fd_ < 0) fd_ = open_file(path_, 0);
    if (fd_ < 0) fail(errno);
    if (fstat(fd_, &found) != 0) fail(errno);
    if (!is_expected(found)) fail(ESTALE);
    device_ = static_cast<std::uint64_t>(found.st_dev);
    inode_ = found.st_ino;
    if (direct_ && !reads_directly(fd_)) {
        close(fd_);
        direct_ = false;
        fd_ = open_same();
        if (fd_ < 0) fail(errno);
    }
    if (!direct_) expect_random_reads(fd_);
    reports_pages_ = ask_ && mapped_ != nullptr && reports_cached(path_, found);
}

// Opens the file again, through the page cache. Returns -1 if that fails, or if the path now names another file.
int DiskFile::open_same() const {
    const int fd = open_file(path_, 0);
    struct stat found;
    if (fd >= 0 && (fstat(fd, &found) != 0 || static_cast<std::uint64_t>(found.st_dev) != device_ || found.st_ino != inode_)) {
        close(fd);
        errno = ESTALE;
        return -1;
    }
    return fd;
}

DiskFile::~DiskFile() {
    if (plain_ >= 0 && plain_ != fd_) close(plain_);
    close(fd_);
}

int DiskFile::plain() const {
    if (!direct_) return fd_;
    const std::lock_guard lock(mutex_);
    if (plain_ < 0) {
        plain_ = open_same();
        if (plain_ >= 0) expect_random_reads(plain_);
    }
    return plain_;
}

void DiskFile::query_pages(std::uint64_t offset, std::size_t count, unsigned char* pages) const {
    const std::uint64_t end = up(size_);
    const std::size_t inside =
        offset >= end ? 0 : std::min<std::uint64_t>(count, (end - offset) / kFetchAlign);
    std::fill(pages + inside, pages + count, std::uint8_t{1});
    if (inside == 0) return;
    // find_cached() counts pages of the system's size, which may be larger than ours.
    static const auto system_page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    if (system_page == kFetchAlign) {
        if (!find_cached(mapped_ + offset, inside * kFetchAlign, pages)) std::fill(pages, pages + inside, std::uint8_t{1});
        for (std::size_t i = 0; i < inside; ++i) pages[i] &= 1;
        return;
    }
    const std::uint64_t first = offset / system_page, last = (offset + inside * kFetchAlign - 1) / system_page;
    std::vector<unsigned char> wide(last - first + 1, 1);
    if (!find_cached(mapped_ + first * system_page, wide.size() * system_page, wide.data()))
        std::fill(wide.begin(), wide.end(), 1);
    for (std::size_t i = 0; i < inside; ++i) pages[i] = wide[(offset + i * kFetchAlign) / system_page - first] & 1;
}

bool DiskFile::probe(std::uint64_t offset) const {
    const int fd = plain();
    return fd < 0 || offset >= size_ || can_read_now(fd, offset);
}

void DiskFile::read_ahead(std::uint64_t begin, std::uint64_t end) const {
    const int fd = plain();
    if (fd >= 0 && begin < end) begin_reading(fd, begin, end - begin);
}

int DiskFile::fails(std::uint64_t begin, std::uint64_t end, std::uint64_t& at) const {
    for (const Bad& bad : bad_) {
        if (begin >= bad.end || bad.begin >= end) continue;
        at = std::max(begin, bad.begin);
        return bad.error;
    }
    return 0;
}

void DiskFile::drop(std::uint64_t offset, std::uint64_t bytes) const {
    const int fd = plain();
    if (fd >= 0) drop_cached(fd, offset, bytes);
}

static std::int64_t read_fully(int fd, std::uint64_t offset, std::size_t size, std::byte* to) {
    std::size_t done = 0;
    while (done < size) {
        const ssize_t got = pread(fd, to + done, size - done, static_cast<off_t>(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return done != 0 ? static_cast<std::int64_t>(done) : -errno;
        if (got == 0) break;
        done += static_cast<std::size_t>(got);
        if (done % kFetchAlign != 0) break;  // the end of the file; a direct read could not continue here
    }
    return static_cast<std::int64_t>(done);
}

int read_plain(const DiskFile& file, std::uint64_t offset, std::size_t size, std::byte* to, std::uint64_t& at) {
    const int fd = file.plain();
    at = offset;
    if (fd < 0) return errno == 0 ? EBADF : errno;
    if (const int error = file.fails(offset, offset + size, at)) return error;
    while (at < offset + size) {
        const ssize_t got = pread(fd, to + (at - offset), offset + size - at, static_cast<off_t>(at));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno;
        if (got == 0) return -1;
        at += static_cast<std::uint64_t>(got);
    }
    return 0;
}

// ---- works ----------------------------------------------------------------------------------------------

Work::Work() : pid_(getpid()) {}

bool Work::made_before_fork() const { return pid_ != getpid(); }

RangeWork::RangeWork(std::vector<Range> ranges, std::shared_ptr<BlockPool> pool)
    : ranges_(std::move(ranges)), pool_(std::move(pool)), results_(ranges_.size()) {}

std::uint64_t plan_reads(const DiskFile& file, std::uint64_t begin, std::uint64_t end, const unsigned char* cached,
                         std::byte* to, std::vector<Read>& reads) {
    const std::size_t pages = (end - begin) / kFetchAlign;
    std::uint64_t from_disk = 0;
    const auto add = [&](std::size_t first, std::size_t last, bool cold) {
        const int fd = cold ? file.descriptor() : file.plain();
        if (cold) from_disk += (last - first) * kFetchAlign;
        const std::size_t count = last - first;
        // In parts of equal size, as a small remainder would cost a request.
        const std::size_t parts = std::max<std::size_t>(1, (count * kFetchAlign + kReadBytes / 2) / kReadBytes);
        for (std::size_t k = 0; k < parts; ++k) {
            const std::size_t from = first + count * k / parts, until = first + count * (k + 1) / parts;
            reads.push_back(
                {fd, begin + from * kFetchAlign, (until - from) * kFetchAlign, to + from * kFetchAlign, cold, 0});
        }
    };
    for (std::size_t at = 0; at < pages;) {
        std::size_t last = at;
        while (last < pages && cached[last] != 0) ++last;
        if ((last - at > kGapPages || last == pages) && file.plain() >= 0) {
            add(at, last, false);
            at = last;
            continue;
        }
        // To the end of the missing pages, across short cached stretches.
        for (std::size_t p = last; p < pages && p - last <= kGapPages; ++p)
            if (cached[p] == 0) last = p + 1;
        add(at, last, true);
        at = last;
    }
    return from_disk;
}

void RangeWork::next(std::vector<Read>& reads) {
    if (!begun_) {
        begun_ = true;
        std::vector<unsigned char> cached;
        for (std::size_t k = 0; k < ranges_.size(); ++k) {
            const Range& range = ranges_[k];
            const std::uint64_t begin = down(range.offset), end = up(range.offset + range.size);
            if (range.size != 0) {
                results_[k].block = pool_->take(end - begin);
                results_[k].data = results_[k].block.get() + (range.offset - begin);
                cached.assign((end - begin) / kFetchAlign, 0);
                if (range.file->reports_pages()) range.file->query_pages(begin, cached.size(), cached.data());
                disk_bytes_ += plan_reads(*range.file, begin, end, cached.data(), results_[k].block.get(), reads);
            }
            reads_end_.push_back(reads.size());
        }
        if (!reads.empty()) return;
    }
    for (std::size_t i = 0, k = 0; i < reads.size(); ++i) {
        while (i >= reads_end_[k]) ++k;
        const Read& read = reads[i];
        const Range& range = ranges_[k];
        // Pages that were cached before stay in the cache.
        if (!range.file->direct() && !range.file->shared() && read.from_disk)
            range.file->drop(read.offset, read.size);
        const std::uint64_t from = std::max(read.offset, range.offset);
        const std::uint64_t to = std::min(read.offset + read.size, range.offset + range.size);
        if (read_reaches(*range.file, read, to)) continue;
        std::uint64_t at;
        const int error = read_plain(*range.file, from, to - from, read.to + (from - read.offset), at);
        if (error != 0 && (results_[k].error == 0 || at < results_[k].at)) {
            results_[k].error = error;
            results_[k].at = at;
        }
    }
    reads.clear();
}

// ---- the fetcher ----------------------------------------------------------------------------------------

struct Fetcher::State {
    pid_t pid = getpid();
    unsigned depth = 0;
    std::unique_ptr<Ring> ring;  // null: threads
    std::mutex mutex;            // guards everything below, and the private members of works
    std::condition_variable wake, progress;
    std::deque<std::shared_ptr<Work>> ready;  // works whose next step is due
    std::deque<Item> reads;                   // not begun
    std::vector<std::thread> threads;
    std::size_t idle = 0, waiting = 0;
    bool ending = false;
};

Fetcher::Fetcher(Backend backend, unsigned depth)
    : backend_(backend), depth_(std::max(depth, 1u)), state_(nullptr) {
    state_ = fresh();
    if (backend == Backend::kRing && state_->ring == nullptr) {
        delete state_;
        throw std::system_error(ENOSYS, std::generic_category(), "io_uring");
    }
}

Fetcher::State* Fetcher::fresh() const {
    auto state = std::make_unique<State>();
    if (backend_ != Backend::kThreads) state->ring = Ring::open(depth_);
    state->depth = state->ring != nullptr ? state->ring->depth() : std::min(depth_, kMaxThreads);
    return state.release();
}

Fetcher::State& Fetcher::state() {
    // The parent's state is left alone: its locks may be cached by threads that do not exist here.
    if (state_->pid != getpid()) state_ = fresh();
    return *state_;
}

Fetcher::~Fetcher() {
    if (state_->pid != getpid()) return;
    {
        const std::lock_guard lock(state_->mutex);
        state_->ending = true;
    }
    state_->wake.notify_all();
    for (std::thread& thread : state_->threads) thread.join();
    delete state_;
}

const char* Fetcher::backend() const { return state_->ring != nullptr ? "io_uring" : "threads"; }

void Fetcher::start(std::shared_ptr<Work> work) {
    State& here = state();
    {
        const std::lock_guard lock(here.mutex);
        here.ready.push_back(std::move(work));
        more_threads(here);
    }
    here.wake.notify_one();
}

bool Fetcher::wait(const Work& work, std::chrono::milliseconds limit) {
    if (work.done()) return true;
    if (work.made_before_fork()) return false;
    State& here = state();
    std::unique_lock lock(here.mutex);
    if (here.threads.empty()) {
        // No thread is available, so the thread that waits does the work.
        while (!work.done() && one_item(here, lock)) {
        }
        return work.done();
    }
    ++here.waiting;
    const bool done = here.progress.wait_for(lock, limit, [&] { return work.done(); });
    --here.waiting;
    return done;
}

void Fetcher::cancel(Work& work) {
    if (work.done() || work.made_before_fork()) return;
    State& here = state();
    std::unique_lock lock(here.mutex);
    work.cancelled_.store(true, std::memory_order_relaxed);
    ++here.waiting;
    here.progress.wait(lock, [&] { return !work.stepping_; });
    --here.waiting;
}

// Runs the next step of a work, with the lock released.
void Fetcher::step(State& state, const std::shared_ptr<Work>& work, std::unique_lock<std::mutex>& lock) {
    std::vector<Read>& reads = work->reads_;
    if (work->cancelled_.load(std::memory_order_relaxed)) {
        reads.clear();
    } else {
        work->stepping_ = true;
        lock.unlock();
        try {
            work->next(reads);
        } catch (const std::bad_alloc&) {
            reads.clear();
            work->starved_ = true;
        }
        lock.lock();
        work->stepping_ = false;
    }
    if (reads.empty()) work->done_.store(true, std::memory_order_release);
    if (state.waiting != 0) state.progress.notify_all();
    if (reads.empty()) return;
    work->pending_ = reads.size();
    for (std::size_t i = 0; i < reads.size(); ++i) state.reads.emplace_back(work, i);
    more_threads(state);
    if (state.ring == nullptr && state.idle != 0) state.wake.notify_all();
}

void Fetcher::more_threads(State& state) {
    // Called with the lock. A signal taken by these threads would not interrupt the call of another thread that waits
    // for them. Faults are a thread's own, though: see guard.h.
    const std::size_t limit = state.ring != nullptr ? 1 : state.depth;
    if (state.threads.size() >= limit || state.idle >= state.reads.size() + state.ready.size()) return;
    sigset_t all, before;
    sigfillset(&all);
    for (const int fault : {SIGBUS, SIGSEGV, SIGFPE, SIGILL}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        const std::size_t pending = state.reads.size() + state.ready.size();
        const std::size_t target = std::min(limit, state.threads.size() + pending - state.idle);
        while (state.threads.size() < target) {
            if (state.ring != nullptr)
                state.threads.emplace_back([&state] { run_ring(state); });
            else
                state.threads.emplace_back([&state] { run_threads(state); });
        }
    } catch (const std::system_error&) {
        // The threads that exist, or that wait, do the work.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Does one pending step or read. Returns false if there is none.
bool Fetcher::one_item(State& state, std::unique_lock<std::mutex>& lock) {
    if (!state.ready.empty()) {
        const std::shared_ptr<Work> work = std::move(state.ready.front());
        state.ready.pop_front();
        step(state, work, lock);
        return true;
    }
    if (state.reads.empty()) return false;
    const Item item = std::move(state.reads.front());
    state.reads.pop_front();
    lock.unlock();
    Work& work = *item.first;
    Read& read = work.reads_[item.second];
    if (work.cancelled_.load(std::memory_order_relaxed))
        read.got = -ECANCELED;
    else
        read.got = read_fully(read.fd, read.offset, read.size, read.to);
    lock.lock();
    if (--work.pending_ == 0) state.ready.push_back(item.first);
    return true;
}

void Fetcher::run_threads(State& state) {
    std::unique_lock lock(state.mutex);
    while (!state.ending) {
        if (one_item(state, lock)) continue;
        ++state.idle;
        state.wake.wait(lock);
        --state.idle;
    }
}

void Fetcher::run_ring(State& state) {
    struct Flight {
        Item item;
        std::size_t done = 0;
    };
    struct Completion {
        std::uint64_t tag;
        std::int64_t got;
    };
    Ring& ring = *state.ring;
    std::vector<Flight> flights(ring.depth());
    std::vector<unsigned> vacant;
    for (unsigned i = ring.depth(); i-- > 0;) vacant.push_back(i);
    std::vector<Completion> completions;
    std::size_t bytes = 0;  // in flight

    const auto prepare = [&](unsigned tag) {
        const Flight& flight = flights[tag];
        const Read& read = flight.item.first->reads_[flight.item.second];
        ring.prepare(read.fd, read.to + flight.done, static_cast<unsigned>(read.size - flight.done),
                     read.offset + flight.done, tag);
    };
    const auto complete = [&](const Item& item, std::int64_t got) {
        item.first->reads_[item.second].got = got;
        if (--item.first->pending_ == 0) state.ready.push_back(item.first);
    };

    std::unique_lock lock(state.mutex);
    for (;;) {
        while (!state.ready.empty() && !state.ending) one_item(state, lock);
        if (state.ending) {
            state.reads.clear();
            state.ready.clear();
        }
        while (!vacant.empty() && !state.reads.empty()) {
            const Read& read = state.reads.front().first->reads_[state.reads.front().second];
            if (bytes != 0 && bytes + read.size > kMaxBytesInFlight) break;
            const Item item = std::move(state.reads.front());
            state.reads.pop_front();
            if (item.first->cancelled_.load(std::memory_order_relaxed)) {
                complete(item, -ECANCELED);
                continue;
            }
            const unsigned tag = vacant.back();
            vacant.pop_back();
            bytes += read.size;
            flights[tag] = {item, 0};
            prepare(tag);
        }
        const std::size_t in_flight = ring.depth() - vacant.size();
        if (in_flight == 0) {
            if (state.ending) return;
            if (state.ready.empty() && state.reads.empty()) {
                ++state.idle;
                state.wake.wait(lock);
                --state.idle;
            }
            continue;
        }
        lock.unlock();
        // Several at a time, as every return from the kernel costs as much as a read.
        const int error = ring.submit(static_cast<unsigned>(std::max<std::size_t>(1, in_flight / 4)));
        if (error == EAGAIN || error == EBUSY) std::this_thread::sleep_for(std::chrono::microseconds(100));
        completions.clear();
        Completion completion;
        while (ring.reap(completion.tag, completion.got)) completions.push_back(completion);
        lock.lock();
        for (const auto& [number, got] : completions) {
            const auto tag = static_cast<unsigned>(number);
            Flight& flight = flights[tag];
            const Read& read = flight.item.first->reads_[flight.item.second];
            if (got > 0) flight.done += static_cast<std::size_t>(got);
            // Continue a short read where it stopped, unless that is the end of the file.
            const bool again = got == -EINTR || got == -EAGAIN ||
                               (got > 0 && flight.done < read.size && flight.done % kFetchAlign == 0);
            if (again) {
                prepare(tag);
                continue;
            }
            bytes -= read.size;
            complete(flight.item, flight.done != 0 ? static_cast<std::int64_t>(flight.done) : got);
            flight.item = {};
            vacant.push_back(tag);
        }
    }
}

}  // namespace feedline
