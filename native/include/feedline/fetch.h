// SPDX-License-Identifier: Apache-2.0
// Reads parts of files into private memory, many reads in flight at a time, in threads that do not use the
// interpreter. Page faults would be served one at a time, in the thread that waits for them. These reads run ahead, and
// bypass the page cache if the file system allows it (O_DIRECT). This takes a tenth of the CPU time and evicts no pages
// of other programs.
//
// A `DiskFile` is open for reading and can report which of its pages are in the page cache. A `Work` is a series of
// steps of some reads each. A step may depend on the bytes that the step before it has read (offsets first, then rows).
// A `Fetcher` runs works through io_uring if the kernel has and allows it, else in a pool of threads. Memory comes from
// a `BlockPool`, page-aligned and reused.
//
// Disk errors never throw: a failed read reports it in `Read::got`, and the work decides.
//
// A forked child does not have its parent's threads: its `Fetcher` starts over at the first use, works of the parent
// are never completed there (`Work::made_before_fork`), and the parent's locks and ring are never touched.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace feedline {

// Offsets, sizes and memory of direct reads are multiples of this: the page size, and no less than any block
// size of a disk that is in use.
constexpr std::size_t kFetchAlign = 4096;

// ---- memory ---------------------------------------------------------------------------------------------

// Allocates page-aligned memory and keeps freed memory for reuse, up to a limit: reused memory costs no page faults.
// Thread-safe.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
public:
    // keep_bytes: memory that may stay idle.
    explicit BlockPool(std::size_t keep_bytes);
    ~BlockPool();
    BlockPool(const BlockPool&) = delete;
    BlockPool& operator=(const BlockPool&) = delete;

    // At least `bytes`, uninitialised. They go back to the pool when the last reference is released, on any thread.
    // Throws bad_alloc.
    std::shared_ptr<std::byte> take(std::size_t bytes);
    // Bytes in use, and idle bytes.
    std::size_t in_use() const;
    std::size_t idle() const;

private:
    struct Block {
        std::byte* data;
        std::size_t bytes;
    };
    void give(Block block);

    const std::size_t keep_bytes_;
    const pid_t pid_;
    mutable std::mutex mutex_;
    std::vector<Block> free_;
    std::size_t free_bytes_ = 0, used_bytes_ = 0;
};

// ---- files ----------------------------------------------------------------------------------------------

class DiskFile {
public:
    // A file to open.
    struct About {
        std::string path;
        std::uint64_t size = 0;
        const std::byte* mapped = nullptr;    // address at which byte 0 is mapped, or would be; queried, never read
        std::uint64_t first = 0;              // the first byte that is mapped, as are all from there up to `size`
        std::uint64_t device = 0, inode = 0;  // identity that the file must have; both 0: any
        bool direct = true;                   // whether to bypass the page cache, if the file system can
        bool ask = true;                      // whether to query the page cache, which else counts as empty
        bool share = false;                   // read through the page cache, for other processes that read the same
    };
    // Opens the file. Throws std::system_error, with ESTALE if the path now names another file, or no regular file.
    explicit DiskFile(const About& about);
    ~DiskFile();
    DiskFile(const DiskFile&) = delete;
    DiskFile& operator=(const DiskFile&) = delete;

    const std::string& path() const { return path_; }
    std::uint64_t size() const { return size_; }
    const std::byte* mapped() const { return mapped_; }
    const std::byte* begin() const { return mapped_ + first_; }
    bool direct() const { return direct_; }
    bool shared() const { return share_; }

    // Whether [at, at + bytes) is in the mapping.
    bool maps(const std::byte* at, std::size_t bytes) const {
        return mapped_ != nullptr && at >= begin() && bytes <= size_ &&
               static_cast<std::uint64_t>(at - mapped_) <= size_ - bytes;
    }

    // The descriptor for reads.
    // `plain`: a descriptor for reads through the page cache, the same one if not `direct`. It is opened at the first
    // use, and -1 if that fails. Both stay the file's.
    int descriptor() const { return fd_; }
    int plain() const;

    // Whether the kernel reports which pages of this file are cached. It does so only for users who may write to it.
    bool reports_pages() const { return reports_pages_; }
    bool asks() const { return ask_; }
    // Sets pages[i] to 1 if page i of the `count` from byte `offset` (a multiple of kFetchAlign) on is cached, else to
    // 0. Pages beyond the end count as cached. O(count), about 0.05 us each. Only if `reports_pages()`.
    void query_pages(std::uint64_t offset, std::size_t count, unsigned char* pages) const;
    // The same for one page if not `reports_pages()`: tries to read it without waiting. The kernel begins to read a
    // page that is probed, so only a few may be.
    bool probe(std::uint64_t offset) const;

    // Makes the page cache begin to read [begin, end); never waits.
    void read_ahead(std::uint64_t begin, std::uint64_t end) const;
    // Makes all further reads of [begin, end) fail with `error`, as a failing disk would. For tests, before any work.
    void fail(std::uint64_t begin, std::uint64_t end, int error) const { bad_.push_back({begin, end, error}); }
    // The injected error for reading [begin, end), and its first byte in `at`; 0: none.
    int fails(std::uint64_t begin, std::uint64_t end, std::uint64_t& at) const;

    // Lets the page cache drop these bytes, unless they are mapped or dirty.
    void drop(std::uint64_t offset, std::uint64_t bytes) const;

private:
    int open_same() const;

    const std::string path_;
    const std::uint64_t size_;
    const std::byte* const mapped_;
    const std::uint64_t first_;
    std::uint64_t device_ = 0, inode_ = 0;
    bool direct_ = false, ask_ = true, share_ = false, reports_pages_ = false;
    int fd_ = -1;
    struct Bad {
        std::uint64_t begin, end;
        int error;
    };
    mutable std::vector<Bad> bad_;
    mutable std::mutex mutex_;
    mutable int plain_ = -1;
};

// ---- works ----------------------------------------------------------------------------------------------

struct Read {
    int fd = -1;
    std::uint64_t offset = 0;
    std::size_t size = 0;
    std::byte* to = nullptr;
    bool from_disk = true;  // rather than from the page cache
    std::int64_t got = 0;   // bytes read (fewer than `size` at the end of the file), or -errno
};

class Work {
public:
    Work();
    virtual ~Work() = default;

    // Called in a thread of the fetcher, never concurrently. On entry `reads` has the completed reads of the last step
    // (none at first), on exit the reads of the next step, or none when the work is done. The work owns the memory and
    // the files of its reads. bad_alloc ends it as `starved`.
    virtual void next(std::vector<Read>& reads) = 0;

    bool done() const { return done_.load(std::memory_order_acquire); }
    // Whether it ended for lack of memory. Only when done.
    bool starved() const { return starved_; }
    // Whether it was made in a parent of this process.
    bool made_before_fork() const;

private:
    friend class Fetcher;
    const pid_t pid_;
    std::vector<Read> reads_;
    std::size_t pending_ = 0;  // unfinished reads of the step
    std::atomic<bool> done_{false}, cancelled_{false};
    bool stepping_ = false, starved_ = false;
};

// Whether a read has brought all bytes before byte `end` of the file.
inline bool read_reaches(const DiskFile& file, const Read& read, std::uint64_t end) {
    std::uint64_t at;
    return read.got >= 0 && read.offset + static_cast<std::uint64_t>(read.got) >= end &&
           file.fails(read.offset, end, at) == 0;
}

// Appends the reads that bring [begin, end) of a file (multiples of kFetchAlign) to `to`. They are from the page cache
// where the cached stretches are long enough to pay, else from the disk. `cached`: one byte per page, as
// DiskFile::query_pages sets them. Returns the number of bytes that are read from the disk.
std::uint64_t plan_reads(const DiskFile& file, std::uint64_t begin, std::uint64_t end, const unsigned char* cached,
                         std::byte* to, std::vector<Read>& reads);

// Reads ranges of files into one block each.
class RangeWork : public Work {
public:
    struct Range {
        std::shared_ptr<const DiskFile> file;
        std::uint64_t offset, size;
    };
    struct Result {
        std::shared_ptr<std::byte> block;
        const std::byte* data = nullptr;  // the byte at `offset`
        int error = 0;                    // errno, or -1 if the file is too short
        std::uint64_t at = 0;             // the first byte that could not be read
    };

    // Bytes in the page cache are copied from there. disk_bytes() counts the bytes from the disk.
    RangeWork(std::vector<Range> ranges, std::shared_ptr<BlockPool> pool);
    void next(std::vector<Read>& reads) override;

    const std::vector<Range>& ranges() const { return ranges_; }
    const std::vector<Result>& results() const { return results_; }
    std::uint64_t disk_bytes() const { return disk_bytes_; }

private:
    const std::vector<Range> ranges_;
    const std::shared_ptr<BlockPool> pool_;
    std::vector<Result> results_;
    std::vector<std::size_t> reads_end_;  // by range: end of its reads
    std::uint64_t disk_bytes_ = 0;
    bool begun_ = false;
};

// Reads [offset, offset + size) of `file` through the page cache, and waits for it. Returns 0, an errno, or -1 if the
// file is too short. After an error `at` is the offset of the first byte that was not read.
int read_plain(const DiskFile& file, std::uint64_t offset, std::size_t size, std::byte* to, std::uint64_t& at);

// ---- the fetcher ----------------------------------------------------------------------------------------

class Ring;

class Fetcher {
public:
    enum class Backend { kAny, kRing, kThreads };

    // depth: reads in flight at a time. Throws std::system_error for kRing if the kernel has no io_uring.
    Fetcher(Backend backend, unsigned depth);
    // Waits for the reads in flight, and drops the ones not begun. No thread may be in wait().
    ~Fetcher();
    Fetcher(const Fetcher&) = delete;
    Fetcher& operator=(const Fetcher&) = delete;

    // "io_uring" or "threads".
    const char* backend() const;
    unsigned depth() const { return depth_; }

    // Begins a work; works begin in order of submission.
    void start(std::shared_ptr<Work> work);
    // Waits for a work, but no longer than `limit`. Returns whether it is done. Several threads may wait for one work.
    bool wait(const Work& work, std::chrono::milliseconds limit);
    // Abandons a work: reads not begun are dropped. Waits for a running step, never for reads. Afterwards `Work::next`
    // is not called again, and the arrays that the work borrowed may be freed. Its own memory is freed when its last
    // read has ended.
    void cancel(Work& work);

private:
    using Item = std::pair<std::shared_ptr<Work>, std::size_t>;  // a read of a work
    struct State;

    static void run_threads(State& state);
    static void run_ring(State& state);
    static bool one_item(State& state, std::unique_lock<std::mutex>& lock);
    static void step(State& state, const std::shared_ptr<Work>& work, std::unique_lock<std::mutex>& lock);
    static void more_threads(State& state);
    State& state();
    State* fresh() const;

    const Backend backend_;
    const unsigned depth_;
    State* state_;
};

}  // namespace feedline
