// SPDX-License-Identifier: Apache-2.0
// A gather of all streams of a table, one job for each. A job is planned first, which gives the sizes of its outputs.
// Then any number of threads fill them part by part. If the outcome has bad entries, they are listed at the end.
//
// The caller allocates outputs between planning and filling, and keeps the table and the picks until both are done.
// Memory that is read may be a mapped file that is cut or changed meanwhile, which the outcome reports. Planning and
// filling run under `guarded`.
//
// Cost: that of the kernels (gather.h), and a check of the copied entries while the caches have them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "feedline/background.h"
#include "feedline/chunk_table.h"
#include "feedline/gather.h"

namespace feedline {

// Libraries of linear algebra add numbers in another order where an array begins at another place modulo the width of a
// vector. So arrays of floating-point numbers begin at a multiple of this many bytes. Otherwise results would depend on
// where a run began.
constexpr std::size_t kArrayAlign = 64;

// The faults of a copy, one address of each kind. Any number of threads set them.
struct GatherOutcome {
    std::atomic<const void*> unreadable{nullptr};  // memory that could not be read
    std::atomic<const void*> changed{nullptr};     // bounds that descend now, and did not when their chunk was added
    std::atomic<const void*> broken{nullptr};      // a seal
    std::atomic<bool> bad{false};                  // indices out of range, bytes that are no bools, or texts not UTF-8

    // Whether the copy has the bytes of the chunks.
    bool intact() const { return !unreadable.load() && !changed.load() && !broken.load(); }
    bool good() const { return intact() && !bad.load(); }
};

// One stream's output. The caller sets `rows`, and for sparse streams `indptr`, and `indices` where classes >= 0.
struct GatherJob {
    bool is_sparse = false;
    bool bools = false;
    bool is_strided = false;  // some chunk's rows are views or windows
    std::int64_t classes = kDense;
    std::size_t item_bytes = 0;
    const DenseSource* dense = nullptr;
    const SparseSource* sparse = nullptr;
    std::unique_ptr<const std::byte*[]> from;  // ragged only
    std::unique_ptr<SparseRun[]> runs;         // sparse only
    std::int64_t num_rows = 0;                 // indptr has one entry more
    std::int64_t num_values = 0;               // sparse only
    std::int64_t* offsets = nullptr;
    std::byte* rows = nullptr;  // num_rows of item_bytes, or num_values
    std::int64_t* indptr = nullptr;
    std::int32_t* indices = nullptr;

    std::int64_t num_items() const { return is_sparse ? num_values : num_rows; }
    // Bytes of the rows or values, and of the indices.
    std::size_t item_memory() const { return static_cast<std::size_t>(num_items()) * item_bytes; }
    std::size_t index_memory() const { return classes < 0 ? 0 : static_cast<std::size_t>(num_items()) * 4; }

    // Fills the places [begin, end), and sets their faults. Reads mapped files, so it runs under `guarded`.
    void copy(const Picks& picks, std::size_t begin, std::size_t end, GatherOutcome& outcome) const;

private:
    void copy_checked(std::size_t begin, std::size_t end, GatherOutcome& outcome) const;
    bool bounds_ascend(std::size_t begin, std::size_t end) const;
};

// Whether the output of a stream needs offsets: some picked chunk has them or, without picks, some chunk ever had.
// O(picks).
bool needs_offsets(const ChunkTable& table, std::size_t stream, const Picks& picks);

// Plans a stream. Picks were checked (first_bad_pick). offsets: of the output (count + 1), filled here, null unless
// needed. If the outcome is not intact afterwards, the job must not be run. Throws bad_alloc. O(picks).
GatherJob plan_gather(const ChunkTable& table, std::size_t stream, const Picks& picks, std::int64_t* offsets,
                      GatherOutcome& outcome);

// Fills the places [begin, end) of all jobs, and checks the seals.
void run_jobs(const std::vector<GatherJob>& jobs, const ChunkTable& table, const Picks& picks, std::size_t begin,
              std::size_t end, GatherOutcome& outcome);
// Fills all places with up to `threads` threads, as many as `bytes` of output pay for.
void run_all(const std::vector<GatherJob>& jobs, const ChunkTable& table, const Picks& picks, std::size_t bytes,
             std::size_t threads, GatherOutcome& outcome);

// A bad entry of a copy, the first one of its sequence.
struct BadEntry {
    std::size_t place, stream;
    std::int64_t entry;    // the index, the byte of a bool, or the first bad byte of a text
    std::int64_t classes;  // as in the table; kDense for a bool
    const void* source;    // address that it was copied from, in the file's mapping if it is from a file
};

// Lists the bad entries of all jobs once they were run, and sets them to 0 in the output. A text that is not UTF-8
// becomes zeros entirely, as the rest of it would be another text.
std::vector<BadEntry> blank_bad_entries(const std::vector<GatherJob>& jobs, const ChunkTable& table,
                                        const Picks& picks);

// A gather for the background thread. It has a copy of the picks, so the caller may overwrite its own at once.
struct GatherWork {
    explicit GatherWork(const Picks& from);

    std::vector<std::uint32_t> slots;
    std::vector<std::int64_t> index;
    Picks picks;
    std::vector<GatherJob> jobs;
    GatherOutcome outcome;
};

// Begins to fill a work's jobs, `bytes` of output, part by part. The table must live until the task is done or
// abandoned. The task shares ownership of the work.
std::shared_ptr<Task> start_gather(std::shared_ptr<GatherWork> work, const ChunkTable& table, std::size_t bytes);

// The layout of one array that holds the arrays of many parts, each at a multiple of kArrayAlign.
class PartsLayout {
public:
    // row_bytes: bytes of a row. If `sliced`, parts are slices of rows. Otherwise places are counted in bytes, which
    // leaves smaller gaps between parts if kArrayAlign is no multiple of a row.
    PartsLayout(std::size_t row_bytes, bool sliced);

    // Adds a part of this many rows.
    void add(std::int64_t rows);

    bool by_bytes() const { return by_bytes_; }
    // The size of the array, and where a part begins in it: in rows, or in bytes.
    std::size_t size() const { return end_; }
    std::size_t at(std::size_t part) const { return at_[part]; }
    std::int64_t rows(std::size_t part) const { return rows_[part]; }
    // Where a part begins, in bytes.
    std::size_t byte(std::size_t part) const { return at_[part] * (by_bytes_ ? 1 : row_bytes_); }

private:
    std::size_t row_bytes_;
    bool by_bytes_;
    std::size_t unit_ = 1;  // of places, in rows or bytes
    std::size_t end_ = 0;
    std::vector<std::size_t> at_;
    std::vector<std::int64_t> rows_;
};

}  // namespace feedline
