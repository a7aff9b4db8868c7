// SPDX-License-Identifier: Apache-2.0
// Chunks by slot: where each stream's rows lie, how many sequences a chunk has, and the seals of the files that it is
// mapped from. The table points into memory that the caller keeps alive.
//
// A table is copied before it is changed while a gather reads it; nothing here is locked.
//
// Cost: holding and removing a chunk is O(streams), and O(different files) for its seals; a copy is O(slots * streams).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "feedline/gather.h"
#include "feedline/stage.h"

namespace feedline {

// In the place of a number of classes: dense rows, byte strings, byte strings that are checked to be UTF-8.
constexpr std::int64_t kDense = -1, kBytes = -2, kText = -3;

// One stream of a chunk.
struct ChunkSource {
    DenseSource dense;    // of a dense stream
    SparseSource sparse;  // of any other
    std::size_t item_bytes = 0;  // size of a row, or of a value
    bool bools = false;          // bytes are looked at, whether they are 0 or 1
};

class ChunkTable {
public:
    struct Stream {
        std::int64_t classes = kDense;  // that sparse indices may name, or one of the above
        bool ever_ragged = false;       // some chunk had offsets, or views
        bool ever_strided = false;
        bool known = false;  // the first chunk fixes the fields below
        bool bools = false;
        std::size_t item_bytes = 0;

        bool sparse() const { return classes != kDense; }
    };

    // An empty table. classes: of each stream.
    explicit ChunkTable(const std::vector<std::int64_t>& classes);

    const std::vector<Stream>& streams() const { return streams_; }
    // The number of slots, vacant ones included.
    std::size_t slots() const { return held_.size(); }
    bool holds(std::int64_t slot) const {
        return slot >= 0 && static_cast<std::size_t>(slot) < held_.size() && held_[static_cast<std::size_t>(slot)];
    }
    // By slot: 0 for a vacant one, so that no index is right there.
    const std::vector<std::int64_t>& sequences() const { return sequences_; }
    // By slot; of the streams that are dense, and of the others.
    const DenseSource* dense(std::size_t stream) const { return dense_[stream].data(); }
    const SparseSource* sparse(std::size_t stream) const { return sparse_[stream].data(); }
    // What brought a slot's chunk into memory, or null.
    const StageWork* origin(std::size_t slot) const { return origins_[slot].get(); }
    const std::vector<Seal>& seals(std::size_t slot) const { return seals_[sealed_by_[slot]].seals; }
    // The bytes of the first broken seal of the chunks that picks [begin, end) are from, or null. Reads mapped files:
    // runs under `guarded`.
    const std::byte* first_broken_seal(const Picks& picks, std::size_t begin, std::size_t end) const;

    // Whether another table has the same streams: the same classes, and sizes as far as both are known.
    bool same_streams(const ChunkTable& other) const;

    // Makes a slot exist. What follows it for this slot allocates for seals only.
    void reserve(std::size_t slot);
    // Holds a chunk in a vacant slot; `sources` has one entry for each stream. All or nothing: throws bad_alloc.
    void hold(std::size_t slot, const std::vector<ChunkSource>& sources, std::int64_t sequences,
              const std::vector<Seal>& seals);
    // The same for a slot of another table with the same streams.
    void hold(std::size_t slot, const ChunkTable& from, std::size_t from_slot);
    // Makes a held slot vacant.
    void remove(std::size_t slot);

    // A table of chosen slots of this one, in that order.
    ChunkTable only(const std::vector<std::uint32_t>& slots) const;
    // A table of runs that were brought into memory, one a slot; a run that could not be read has no sequences. `work`
    // is done and was made from this table's sources; slots: of each run.
    ChunkTable staged(const std::vector<std::uint32_t>& slots, std::shared_ptr<const StageWork> work) const;

private:
    // The seals of the files that some chunks are mapped from; mostly one, and the same for many chunks.
    struct Seals {
        std::vector<Seal> seals;
        std::size_t slots = 0;  // that have these; with none, the place is free
    };

    // Without chunks.
    explicit ChunkTable(std::vector<Stream> streams);
    std::uint32_t place_of(const std::vector<Seal>& seals);

    std::vector<Stream> streams_;
    std::vector<std::int64_t> sequences_;             // by slot
    std::vector<char> held_;                          // by slot
    std::vector<std::vector<DenseSource>> dense_;     // by stream, by slot; empty for a sparse stream
    std::vector<std::vector<SparseSource>> sparse_;   // the other way round
    std::vector<std::shared_ptr<const StageWork>> origins_;  // by slot
    std::vector<std::uint32_t> sealed_by_;            // by slot: a place in the next
    std::vector<Seals> seals_{Seals{}};               // the first is none at all
};

// The first run that is empty or leads outside its slot, whose picks were checked; -1 if there is none. O(runs).
std::ptrdiff_t first_bad_run(const Runs& runs, const ChunkTable& table);

// The different slots of runs in order of appearance, and for each run the place of its slot among these. O(runs).
struct RunSlots {
    explicit RunSlots(const Runs& runs);

    std::vector<std::uint32_t> slots, places;
};

// A table's streams, as a StageWork takes them.
std::vector<StageWork::Stream> stage_streams(const ChunkTable& table);

// How many runs lack a page of the page cache, among at most `most`, evenly spaced; of each stream of a run at most
// `pages` are looked at. Some tenths of a microsecond per page.
std::size_t count_lacking(const ChunkTable& table, const Runs& runs, const MappedFiles& files, std::size_t most,
                          std::size_t pages);

}  // namespace feedline
