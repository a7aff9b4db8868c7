// SPDX-License-Identifier: Apache-2.0
// A gather of all streams of a table: one job for each, planned first, as that gives the sizes of its outputs, then
// filled part by part by any number of threads, and looked through for bad entries where there are some.
//
// The caller allocates outputs between planning and filling, and keeps the table and the picks until both are done.
// What is read may be a mapped file that is cut or changed meanwhile: the outcome says so. Planning and filling run
// under `guarded`.
//
// Cost: those of the kernels (gather.h), and a look at what was copied while the caches have it.
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

// Libraries of linear algebra add numbers in another order where these begin at another place modulo the width of a
// vector: what is computed with begins at a multiple of this many bytes, or results would depend on where a run began.
constexpr std::size_t kArrayAlign = 64;

// What is wrong with what was copied, the first of each; filled by any number of threads.
struct GatherOutcome {
    std::atomic<const void*> unreadable{nullptr};  // an address
    std::atomic<const void*> changed{nullptr};     // bounds that fall now, and did not when their chunk came
    std::atomic<const void*> broken{nullptr};      // a seal
    std::atomic<bool> bad{false};                  // indices out of range, bools that are none, or texts

    // Whether the copy is what the chunks held.
    bool whole() const { return !unreadable.load() && !changed.load() && !broken.load(); }
    bool good() const { return whole() && !bad.load(); }
};

// One stream's output. The caller sets `rows`, and for sparse streams `indptr`, and `indices` where classes >= 0.
struct GatherJob {
    bool is_sparse = false;
    bool bools = false;
    bool is_strided = false;  // some chunk's rows are views
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
    // Of rows or values, and of indices.
    std::size_t item_memory() const { return static_cast<std::size_t>(num_items()) * item_bytes; }
    std::size_t index_memory() const { return classes < 0 ? 0 : static_cast<std::size_t>(num_items()) * 4; }

    // Fills the places [begin, end), and tells what is wrong with them. Reads mapped files: runs under `guarded`.
    void copy(const Picks& picks, std::size_t begin, std::size_t end, GatherOutcome& outcome) const;

private:
    void copy_checked(std::size_t begin, std::size_t end, GatherOutcome& outcome) const;
    bool rise(std::size_t begin, std::size_t end) const;
};

// Whether the output of a stream needs offsets: some picked chunk has them, or for no picks, some chunk had. O(picks).
bool needs_offsets(const ChunkTable& table, std::size_t stream, const Picks& picks);

// Plans a stream; picks were checked (first_bad_pick). offsets: of the output (count + 1), filled here; null unless
// needed. Where the outcome is not whole afterwards, the job is of no use.
GatherJob plan_gather(const ChunkTable& table, std::size_t stream, const Picks& picks, std::int64_t* offsets,
                      GatherOutcome& outcome);

// Fills the places [begin, end) of all jobs, and looks whether seals are broken.
void run_jobs(const std::vector<GatherJob>& jobs, const ChunkTable& table, const Picks& picks, std::size_t begin,
              std::size_t end, GatherOutcome& outcome);
// Fills all places with up to `threads` threads, as many as `bytes` of output pay for.
void run_all(const std::vector<GatherJob>& jobs, const ChunkTable& table, const Picks& picks, std::size_t bytes,
             std::size_t threads, GatherOutcome& outcome);

// A bad entry of a copy, the first one of its place.
struct BadEntry {
    std::size_t place, stream;
    std::int64_t entry;    // index, byte of a bool, or the first bad byte of a text
    std::int64_t classes;  // as in the table; kDense for a bool
    const void* source;    // where it was copied from: an address in the file's mapping
};

// The bad entries of all jobs once they were run. All of them become 0 in the output, and texts that are not UTF-8
// become zeros as a whole: what is left of one would be another text.
std::vector<BadEntry> blank_bad_entries(const std::vector<GatherJob>& jobs, const ChunkTable& table,
                                        const Picks& picks);

// A gather for the background thread, which owns its picks: the caller may write to its own as soon as it is made.
struct GatherWork {
    explicit GatherWork(const Picks& wanted);

    std::vector<std::uint32_t> slots;
    std::vector<std::int64_t> index;
    Picks picks;
    std::vector<GatherJob> jobs;
    GatherOutcome outcome;
};

// Begins to fill a work's jobs, `bytes` of output, part by part. The table must stay until the task is done or
// abandoned.
std::shared_ptr<Task> start_gather(std::shared_ptr<GatherWork> work, const ChunkTable& table, std::size_t bytes);

// Where the arrays of many parts begin in one array that holds them all, each at a multiple of kArrayAlign.
class Shelf {
public:
    // row_bytes: of a row of the arrays. Parts are slices of rows where `sliced`; else places are counted in bytes,
    // which leaves less between parts of rows that are not multiples of kArrayAlign.
    Shelf(std::size_t row_bytes, bool sliced);

    void add(std::int64_t rows);

    bool by_bytes() const { return by_bytes_; }
    // Of the whole array, and where a part begins in it: in rows, or in bytes.
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
