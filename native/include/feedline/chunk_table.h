// SPDX-License-Identifier: Apache-2.0
// Chunks by slot: where each stream's rows are in memory, how many sequences a chunk has, and the seals of the files
// that it is mapped from. The table points into memory that the caller keeps alive.
//
// Nothing here is locked: while a gather reads a table, changes are made to a copy.
//
// Cost: to hold or remove a chunk is O(streams), and O(different files) for its seals. A copy is O(slots * streams).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "feedline/gather.h"
#include "feedline/stage.h"

namespace feedline {

// Instead of a number of classes: dense rows, byte strings, byte strings that are checked to be UTF-8.
constexpr std::int64_t kDense = -1, kBytes = -2, kText = -3;

// One stream of a chunk.
struct ChunkSource {
    DenseSource dense;           // of a dense stream
    SparseSource sparse;         // of any other stream
    std::size_t item_bytes = 0;  // size of a row, or of a value
    bool bools = false;          // whether a gather checks that the bytes are 0 or 1
};

class ChunkTable {
public:
    struct Stream {
        std::int64_t classes = kDense;  // number that sparse indices are below, or one of the constants above
        bool ever_ragged = false;       // some chunk had offsets
        bool ever_strided = false;      // some chunk's rows were views or windows
        bool known = false;             // whether a first chunk has fixed the fields below
        bool bools = false;
        std::size_t item_bytes = 0;

        bool sparse() const { return classes != kDense; }
    };

    // An empty table. classes: one number for each stream.
    explicit ChunkTable(const std::vector<std::int64_t>& classes);

    const std::vector<Stream>& streams() const { return streams_; }
    // The number of slots, vacant ones included.
    std::size_t slots() const { return occupied_.size(); }
    bool holds(std::int64_t slot) const {
        return slot >= 0 && static_cast<std::size_t>(slot) < occupied_.size() &&
               occupied_[static_cast<std::size_t>(slot)];
    }
    // By slot. 0 for a vacant slot, where no index is valid.
    const std::vector<std::int64_t>& sequences() const { return sequences_; }
    // By slot: the sources of a dense stream, and of a sparse one.
    const DenseSource* dense(std::size_t stream) const { return dense_[stream].data(); }
    const SparseSource* sparse(std::size_t stream) const { return sparse_[stream].data(); }
    // The work that brought a slot's chunk into memory, or null. Lives as long as the chunk is held.
    const StageWork* origin(std::size_t slot) const { return origins_[slot].get(); }
    const std::vector<Seal>& seals(std::size_t slot) const { return seals_[sealed_by_[slot]].seals; }
    // The bytes of the first broken seal of the chunks that picks [begin, end) are from, or null. Reads mapped files,
    // so it runs under `guarded`.
    const std::byte* first_broken_seal(const Picks& picks, std::size_t begin, std::size_t end) const;

    // Whether another table has the same streams: the same classes, and sizes as far as both are known.
    bool same_streams(const ChunkTable& other) const;

    // Makes a slot exist. The calls below then allocate for seals only. Throws bad_alloc.
    void reserve(std::size_t slot);
    // Holds a chunk in a vacant slot. `sources` has one entry for each stream. Throws bad_alloc, with nothing changed.
    void hold(std::size_t slot, const std::vector<ChunkSource>& sources, std::int64_t sequences,
              const std::vector<Seal>& seals);
    // The same for a slot of another table with the same streams.
    void hold(std::size_t slot, const ChunkTable& from, std::size_t from_slot);
    // Makes a held slot vacant.
    void remove(std::size_t slot);

    // A table of these slots of this one, in their order.
    ChunkTable only(const std::vector<std::uint32_t>& slots) const;
    // A table of runs that were brought into memory, one for each slot. A run that could not be read has no sequences.
    // `work` is done and was made from this table's sources. slots: the slot of each run in this table.
    ChunkTable staged(const std::vector<std::uint32_t>& slots, std::shared_ptr<const StageWork> work) const;

private:
    // The seals of the files that some chunks are mapped from. Mostly there is one, the same for many chunks.
    struct Seals {
        std::vector<Seal> seals;
        std::size_t slots = 0;  // number of slots that have these; with none, the place is free
    };

    // An empty table.
    explicit ChunkTable(std::vector<Stream> streams);
    std::uint32_t place_of(const std::vector<Seal>& seals);

    std::vector<Stream> streams_;
    std::vector<std::int64_t> sequences_;             // by slot
    std::vector<char> occupied_;                      // by slot
    std::vector<std::vector<DenseSource>> dense_;     // by stream, by slot; empty for a sparse stream
    std::vector<std::vector<SparseSource>> sparse_;   // by stream, by slot; empty for a dense stream
    std::vector<std::shared_ptr<const StageWork>> origins_;  // by slot
    std::vector<std::uint32_t> sealed_by_;            // by slot: a place in `seals_`
    std::vector<Seals> seals_{Seals{}};               // the first has no seals
};

// The first run that is empty or leads outside its slot, or -1. Their first sequences were checked (first_bad_pick).
// O(runs).
std::ptrdiff_t first_bad_run(const Runs& runs, const ChunkTable& table);

// The distinct slots of runs in order of appearance, and for each run the place of its slot among these. O(runs).
struct RunSlots {
    explicit RunSlots(const Runs& runs);

    std::vector<std::uint32_t> slots, places;
};

// A table's streams, as StageWork's constructor takes them. They point into the table.
std::vector<StageWork::Stream> stage_streams(const ChunkTable& table);

// The number of runs of which the page cache lacks a page. Checks at most `max_runs` runs, evenly spaced, and of each
// of their streams at most `max_pages` pages. Some tenths of a microsecond per page.
std::size_t count_lacking(const ChunkTable& table, const Runs& runs, const MappedFiles& files,
                          std::size_t max_runs, std::size_t max_pages);

}  // namespace feedline
