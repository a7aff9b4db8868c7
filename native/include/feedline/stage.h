// SPDX-License-Identifier: Apache-2.0
// Reads runs of sequences of mapped files into memory before they are gathered.
//
// A gather (gather.h) from a mapping waits for the disk one page fault at a time. A `StageWork` checks first. Bytes in
// the page cache, or in no file, stay in place. All others are sorted, merged where they are close, and read many at a
// time. A pick is a run of consecutive sequences of a slot: single rows of a shuffle, or blocks of a window. The result
// is one source per pick for a gather: sequence k of the run is sequence k of the source.
//
// Offsets of sequences and bounds of rows are read first, as the next reads depend on them: up to three steps, all
// streams together. A run whose offsets descend, or lead outside their chunk, results in a fault.
//
// Pieces much smaller than a page (labels, offsets) would cost a read each, from the same pages again and again. A
// stream may keep them in the page cache (`Stream::keep_*`). They are then read through it, with the bytes around them
// in the chunk, and are cached from the second time on.
//
// Rows that are views (RowLayout) are read with the gaps between them, or the bytes that they share, and stay views.
// Rows in pieces, in reverse order or with wide gaps stay in place.
//
// Cost: O(picks log picks) time, one query of the page cache per run and stream, 0.05 us per page, and memory for the
// pages that are read, until the work is destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "feedline/fetch.h"
#include "feedline/gather.h"

namespace feedline {

// Files in ascending order of the addresses at which they are mapped.
using MappedFiles = std::vector<std::shared_ptr<const DiskFile>>;

// Runs of sequences: run i has counts[i] sequences of slot slots[i], from index[i] on. The arrays stay the caller's.
struct Runs {
    const std::uint32_t* slots;  // null: slot 0 for all
    const std::int64_t* index;
    const std::int64_t* counts;  // null: 1 for all
    std::size_t count;
};

class StageWork : public Work {
public:
    struct Stream {
        bool is_sparse;
        std::size_t item_bytes;      // size of a row, or of a value
        const DenseSource* dense;    // by slot, for a dense stream
        const SparseSource* sparse;  // by slot, for a sparse one
        bool keep_rows = false;      // keep rows (or indices and values) in the page cache
        bool keep_bounds = false;    // keep offsets and bounds of sparse rows there
        bool has_indices = true;     // false: byte strings, which are sparse rows without indices
    };
    // Why a run could not be read.
    struct Fault {
        std::size_t pick, stream;
        int error;           // errno; -1 if the file is too short; 0 if offsets or bounds are impossible
        std::size_t file;    // in `files`, unless error is 0
        std::uint64_t at;    // the first missing byte in the file
    };

    // Runs must name slots, and be inside them. The sources are borrowed until the work is done or cancelled, and
    // longer where bytes stay in place: the result points to them. Throws bad_alloc.
    StageWork(std::vector<Stream> streams, const Runs& runs, std::shared_ptr<const MappedFiles> files,
              std::shared_ptr<BlockPool> pool);
    void next(std::vector<Read>& reads) override;
    // A copy of this work that is not begun, for a forked child.
    std::shared_ptr<StageWork> copy_not_begun() const;

    // When done: by stream, one source per pick, empty for a pick with a fault. They live as long as the work.
    const std::vector<DenseSource>& dense(std::size_t stream) const { return outcome_[stream].dense; }
    const std::vector<SparseSource>& sparse(std::size_t stream) const { return outcome_[stream].sparse; }
    // Sequences of a run.
    std::int64_t sequences(std::size_t pick) const { return counts_.empty() ? 1 : counts_[pick]; }
    // The address of a byte in the mapping of its file, given its address in memory. `at` itself if it was not read.
    const std::byte* origin(const std::byte* at) const;
    // Whether some of the run's bytes stayed in place.
    bool in_place(std::size_t pick) const { return in_place_[pick] != 0; }
    // Drops the pages from the page cache that were read through it for other processes (DiskFile::shared), which have
    // copied them by now. Only when done.
    void forget() const;
    const std::vector<Fault>& faults() const { return faults_; }
    const MappedFiles& files() const { return *files_; }
    std::size_t picks() const { return slots_.size(); }
    // Pieces in files, pieces of which the page cache lacked a page, bytes read for those, and bytes of memory that
    // hold them.
    std::size_t pieces_in_files() const { return pieces_in_files_; }
    std::size_t missing_pieces() const { return missing_pieces_; }
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
        const std::byte* data;  // where the bytes are in memory; null: unknown
    };
    // A want whose bytes are in a file.
    struct Candidate {
        std::size_t file;
        std::uint64_t offset;
        std::size_t want;
    };
    // A part of a file that is read at once, for candidates [begin, end).
    struct Extent {
        std::size_t file;
        std::uint64_t offset, bytes;
        std::size_t begin, end;
        bool keep;
        std::byte* to;
        std::vector<unsigned char> cached;
        std::size_t first_read, last_read;
    };
    struct Rows {
        std::int64_t first = 0, last = 0;    // rows of the run
        std::int64_t value = 0, values = 0;  // sparse: first value, and number of values
        bool good = true;
    };
    struct Outcome {
        bool ragged = false;
        std::vector<Rows> rows;                          // as far as they are known
        std::vector<std::vector<std::int64_t>> offsets;  // of ragged runs, from 0
        std::vector<std::vector<std::int64_t>> bounds;   // of sparse rows, from 0
        std::vector<DenseSource> dense;
        std::vector<SparseSource> sparse;
    };

    void add_wants(unsigned step);
    void locate_wants(std::vector<Read>& reads);
    void read_around(const Want& want, std::size_t file);
    void handle_reads(const std::vector<Read>& reads);
    void use_wants();
    void use_want(const Want& want);
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
    std::vector<Piece> pieces_, shared_;  // all that were read; those read through the page cache for others
    std::size_t pieces_in_files_ = 0, missing_pieces_ = 0;
    std::uint64_t disk_bytes_ = 0, memory_ = 0;
};

// Whether the page cache lacks a page of a run. Checks at most `max_pages` pages, spread evenly over each stream. If
// offsets or bounds would have to be read to find the rows, only these are checked. Some tenths of a microsecond per
// page.
bool lacks_pages(const std::vector<StageWork::Stream>& streams, std::uint32_t slot, std::int64_t index,
                 std::int64_t count, const MappedFiles& files, std::size_t max_pages);

}  // namespace feedline
