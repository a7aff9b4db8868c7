// SPDX-License-Identifier: Apache-2.0
// Chosen sequences of mapped files brought into memory before they are gathered.
//
// A gather (gather.h) that follows its sources into a map waits for the disk one page fault at a time. A
// `StageWork` looks first: bytes that the page cache holds, or that are in no file, are left where they are;
// all others are sorted, merged where they are close, and read many at a time. A pick is a run of consecutive
// sequences of a slot: single rows of a shuffle, or blocks of a window. What comes out is a source for each pick,
// which a gather takes as it takes any others: sequence k of the run is sequence k of it.
//
// Where sequences have offsets, or rows bounds, these are read first and say what to read next: up to three
// steps, all streams together. A run whose offsets fall, or lead outside their chunk, comes out as a fault.
//
// Pieces much smaller than a page (labels, offsets) would cost a read each, and come from the same pages again
// and again. A stream may say that it is worth to keep them (`Stream::keep_*`): they are then read through the page
// cache, with what lies around them in their chunk, and are found there from the second time on.
//
// Cost: O(picks log picks) of processor time and one question to the kernel a run and stream, 0.05 us a page;
// memory of the pages read, until the work goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "feedline/fetch.h"
#include "feedline/gather.h"

namespace feedline {

// Files by where they are mapped, ascending.
using MappedFiles = std::vector<std::shared_ptr<const DiskFile>>;

// Runs of sequences: `counts` of them each, from `index` on; null: one.
struct Runs {
    const std::uint32_t* slots;
    const std::int64_t* index;
    const std::int64_t* counts;
    std::size_t count;
};

class StageWork : public Work {
public:
    struct Stream {
        bool is_sparse;
        std::size_t item_bytes;      // of a row, or of a value
        const DenseSource* dense;    // by slot, for a dense stream
        const SparseSource* sparse;  // by slot, for a sparse one
        bool keep_rows = false;      // the page cache is to keep rows (or indices and values)
        bool keep_bounds = false;    // likewise offsets and bounds of sparse rows
    };
    // Why a run could not be read.
    struct Fault {
        std::size_t pick, stream;
        int error;           // errno; -1 if the file ended too early; 0 if offsets or bounds are impossible
        std::size_t file;    // in `files`, unless error is 0
        std::uint64_t at;    // the first byte in the file that did not come
    };

    // Runs must be inside their slots. Sources are borrowed until the work is done or cancelled; what comes out points
    // into them where bytes were left in place.
    StageWork(std::vector<Stream> streams, const Runs& runs, std::shared_ptr<const MappedFiles> files,
              std::shared_ptr<BlockPool> pool);
    void next(std::vector<Read>& reads) override;
    // The same from its beginning, for a forked child.
    std::shared_ptr<StageWork> again() const;

    // When done: by stream, one source a pick; that of a pick with a fault is empty.
    const std::vector<DenseSource>& dense(std::size_t stream) const { return outcome_[stream].dense; }
    const std::vector<SparseSource>& sparse(std::size_t stream) const { return outcome_[stream].sparse; }
    std::int64_t sequences(std::size_t pick) const { return counts_.empty() ? 1 : counts_[pick]; }
    // Where bytes that were read lie in the map of their file; `at` itself if it is no such byte.
    const std::byte* origin(const std::byte* at) const;
    // Whether some of the run's bytes were left where they are.
    bool in_place(std::size_t pick) const { return in_place_[pick] != 0; }
    // Has the page cache drop what was read through it for the sake of other processes (DiskFile::shared), which have
    // it by now. Only when done.
    void forget() const;
    const std::vector<Fault>& faults() const { return faults_; }
    const MappedFiles& files() const { return *files_; }
    std::size_t picks() const { return slots_.size(); }
    // Pieces looked for in files, how many of them the page cache did not hold, bytes read for these, and bytes of
    // memory that hold them.
    std::size_t asked() const { return asked_; }
    std::size_t missing() const { return missing_; }
    std::uint64_t disk_bytes() const { return disk_bytes_; }
    std::uint64_t memory() const { return memory_; }

private:
    enum class Part { kOffsets, kBounds, kRows, kIndices, kValues };
    struct Want {
        const std::byte* at;
        std::size_t bytes;
        std::uint32_t stream, pick;
        Part part;
        bool keep;
        const std::byte* got;  // where the bytes are to be had; null: nowhere
    };
    // A want that lies in a file.
    struct Candidate {
        std::size_t file;
        std::uint64_t offset;
        std::size_t want;
    };
    // What is brought in one piece, for candidates [begin, end).
    struct Extent {
        std::size_t file;
        std::uint64_t offset, bytes;
        std::size_t begin, end;
        bool keep;
        std::byte* to;
        std::vector<unsigned char> held;
        std::size_t first_read, last_read;
    };
    struct Rows {
        std::int64_t first = 0, last = 0;    // rows of the run
        std::int64_t value = 0, values = 0;  // sparse: its first value, and how many
        bool good = true;
    };
    struct Outcome {
        bool ragged = false;
        std::vector<Rows> rows;                          // what is known so far
        std::vector<std::vector<std::int64_t>> offsets;  // of ragged runs, from 0
        std::vector<std::vector<std::int64_t>> bounds;   // of sparse rows, from 0
        std::vector<DenseSource> dense;
        std::vector<SparseSource> sparse;
    };

    void ask(unsigned step);
    void find(std::vector<Read>& reads);
    void read_around(const Want& want, std::size_t file);
    void settle(const std::vector<Read>& reads);
    void take();
    void take_one(const Want& want);
    void fail(const Want& want, int error, std::size_t file, std::uint64_t at);
    const std::int64_t* offsets_of(const Stream& stream, std::uint32_t pick) const;

    const std::vector<Stream> streams_;
    const std::vector<std::uint32_t> slots_;
    const std::vector<std::int64_t> index_, counts_;
    const std::shared_ptr<const MappedFiles> files_;
    const std::shared_ptr<BlockPool> pool_;

    unsigned step_ = 0, steps_ = 0;
    bool begun_ = false;
    std::vector<Want> wants_;
    std::vector<Candidate> candidates_;
    std::vector<Extent> extents_;
    std::vector<std::shared_ptr<std::byte>> blocks_;
    std::vector<Outcome> outcome_;
    std::vector<char> in_place_;
    std::vector<Fault> faults_;
    struct Piece {
        std::size_t file;
        std::uint64_t offset, bytes;
        const std::byte* to;
    };
    std::vector<Piece> pieces_, shared_;  // all that was read; what was read through the page cache for others
    std::size_t asked_ = 0, missing_ = 0;
    std::uint64_t disk_bytes_ = 0, memory_ = 0;
};

// Whether the page cache lacks a page of a run, among at most `most` of them that are looked at, evenly spread over
// each stream. Where offsets or bounds would have to be read to find the rows, these alone are looked at. Some
// tenths of a microsecond a page.
bool lacks_pages(const std::vector<StageWork::Stream>& streams, std::uint32_t slot, std::int64_t index,
                 std::int64_t count, const MappedFiles& files, std::size_t most);

}  // namespace feedline
