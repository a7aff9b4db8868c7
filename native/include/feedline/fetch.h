// SPDX-License-Identifier: Apache-2.0
// Reads parts of files into private memory, many reads in flight at a time, in threads that do not use the
// interpreter. Page faults would be served one at a time, in the thread that waits for them; these reads run ahead,
// and bypass the page cache if the file system allows it (O_DIRECT): a tenth of the CPU, and no other program's pages
// are evicted.
//
// A `DiskFile` is open for reading and can report which of its pages the page cache holds. A `Work` is a row of
// steps of some reads each; a step may depend on what the last one read (offsets first, then rows). A `Fetcher` runs
// works: through io_uring if the kernel has and allows it, else in a pool of threads. Memory comes from a
// `BlockPool`, page-aligned and reused.
//
// Disk errors never throw: a failed read reports it in `Read::got`, and the work decides.
//
// A forked child does not have its parent's threads: its `Fetcher` starts over at the first use, works of the parent
// are never completed there (`Work::of_a_parent`), and the parent's locks and ring are never touched.
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

    // At least `bytes`, uninitialised; returned when the last reference is released, on any thread. Throws bad_alloc.
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
        const std::byte* mapped = nullptr;      // where byte 0 is mapped, or would be; queried, never read
        std::uint64_t first = 0;                // the first byte that is mapped; all up to `size` are
        std::uint64_t device = 0, inode = 0;    // which file it must be; both 0: any
        bool direct = true;                     // whether to read past the page cache, if the file system can
        bool ask = true;                        // whether to query the page cache; else it counts as empty
        bool share = false;                     // read through the page cache, for other processes that read the same
    };
    // Opens the file. Throws std::system_error; ESTALE if the name is now another file's, or not a regular file's.
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

    // The descriptor for reads, and one for reads through the page cache (the same if not `direct`), which is opened at
    // the first use; -1 if it cannot be opened.
    int descriptor() const { return fd_; }
    int plain() const;

    // Whether the kernel reports the residency of this file's pages; it does only to users who might write to the file.
    bool tells() const { return tells_; }
    bool asked() const { return ask_; }
    // pages[i] becomes 1 if the page cache holds page i of the `count` from `offset` (a multiple of kFetchAlign)
    // on, else 0; pages beyond the end count as held. O(count), about 0.05 us each. Only if `tells()`.
    void held(std::uint64_t offset, std::size_t count, unsigned char* pages) const;
    // The same for one page if not `tells()`: tries to read it without waiting. This makes the kernel begin to read the
    // page, so use it for samples only.
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
    bool direct_ = false, ask_ = true, share_ = false, tells_ = false;
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

    // Called in a thread of the fetcher, never concurrently. On entry `reads` holds the completed reads of the last
    // step (none at first), on exit those of the next step; none: the work is done. The work owns the memory and files of
    // its reads. bad_alloc ends it as `starved`.
    virtual void next(std::vector<Read>& reads) = 0;

    bool done() const { return done_.load(std::memory_order_acquire); }
    // Whether it ended for lack of memory; only valid when done.
    bool starved() const { return starved_; }
    bool of_a_parent() const;

private:
    friend class Fetcher;
    const pid_t pid_;
    std::vector<Read> reads_;
    std::size_t pending_ = 0;  // unfinished reads of the step
    std::atomic<bool> done_{false}, cancelled_{false};
    bool stepping_ = false, starved_ = false;
};

// Whether a read is complete up to byte `end` of the file.
inline bool came(const DiskFile& file, const Read& read, std::uint64_t end) {
    std::uint64_t at;
    return read.got >= 0 && read.offset + static_cast<std::uint64_t>(read.got) >= end &&
           file.fails(read.offset, end, at) == 0;
}

// Adds the reads that bring [begin, end) of a file (multiples of kFetchAlign) to `to`: from the page cache where it
// holds stretches that are long enough to pay (`held`: one byte per page, as from DiskFile::held), else from the disk.
// Returns the bytes from the disk.
std::uint64_t plan_reads(const DiskFile& file, std::uint64_t begin, std::uint64_t end, const unsigned char* held,
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

    // Bytes in the page cache are copied from there; disk_bytes counts the others.
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

// Reads [offset, offset + size) of `file` through the page cache, waiting for it. Returns 0, or errno, or -1 if the
// file is too short, and then in `at` the offset of the first missing byte.
int read_plain(const DiskFile& file, std::uint64_t offset, std::size_t size, std::byte* to, std::uint64_t& at);

// ---- the fetcher ----------------------------------------------------------------------------------------

class Ring;

class Fetcher {
public:
    enum class Backend { kAny, kRing, kThreads };

    // depth: reads in flight at a time. Throws std::system_error for kRing if the kernel has no io_uring.
    Fetcher(Backend backend, unsigned depth);
    // Waits for the reads in flight, and drops those not begun. No thread may be in wait().
    ~Fetcher();
    Fetcher(const Fetcher&) = delete;
    Fetcher& operator=(const Fetcher&) = delete;

    // "io_uring" or "threads".
    const char* backend() const;
    unsigned depth() const { return depth_; }

    // Begins a work; works begin in order of submission.
    void start(std::shared_ptr<Work> work);
    // Waits for a work, but no longer than `limit`; true if it is done. Several threads may wait for one.
    bool wait(const Work& work, std::chrono::milliseconds limit);
    // Abandons a work: reads not begun are dropped. Waits for a running step, never for reads; afterwards `Work::next`
    // is not called again, and what the work borrowed may be freed. Its own memory is freed when its last read has ended.
    void cancel(Work& work);

private:
    using Item = std::pair<std::shared_ptr<Work>, std::size_t>;  // a read of a work
    struct State;

    static void run_threads(State& state);
    static void run_ring(State& state);
    static bool one_item(State& state, std::unique_lock<std::mutex>& lock);
    static void step(State& state, const std::shared_ptr<Work>& work, std::unique_lock<std::mutex>& lock);
    static void ended(State& state, Work& work, std::unique_lock<std::mutex>& lock);
    static void more_threads(State& state);
    State& state();
    State* fresh() const;

    const Backend wanted_;
    const unsigned depth_;
    State* state_;
};

}  // namespace feedline
