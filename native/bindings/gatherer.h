// SPDX-License-Identifier: Apache-2.0
// The Gatherer with its copies and staged runs, shared by the bindings of gather.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "arrays.h"
#include "feedline/background.h"
#include "feedline/chunk_table.h"
#include "feedline/gather_job.h"
#include "feedline/stage.h"
#include "fetch.h"

namespace feedline::bindings {

constexpr std::int64_t kMaxSlots = std::int64_t{1} << 24;

// What numpy has to know of a stream's rows, or values; fixed by the first chunk.
struct Column {
    nb::object dtype;
    nb::object row_shape;  // tuple; empty for a sparse stream
    bool inexact = false;  // not of integers, times or the like
};

// Chunks with the arrays that they lie in; immutable while a gather is running.
struct Chunks {
    explicit Chunks(const std::vector<std::int64_t>& classes) : table(classes), columns(classes.size()) {}
    Chunks(ChunkTable chunks, std::vector<Column> of_streams)
        : table(std::move(chunks)), columns(std::move(of_streams)), owners(table.slots()) {}

    ChunkTable table;
    std::vector<Column> columns;
    std::vector<std::vector<nb::object>> owners;  // by slot
};

// One stream of a chunk as add() takes it, checked.
struct Arrival {
    ChunkSource source;
    Column column;
    std::int64_t sequences = 0;
    nb::capsule layout;  // owner of source.dense.layout, if there is one
};
Arrival examine_dense(const std::string& where, nb::tuple value);
// classes: of the stream, which is not dense.
Arrival examine_sparse(const std::string& where, nb::tuple value, std::int64_t classes);
// Eight bytes of a map as they are now.
Seal examine_seal(nb::handle array);

// The arguments of a gather, looked at while the GIL is held.
struct PickArrays {
    PickArrays(nb::handle slots, nb::handle index);

    Ints indices;
    std::unique_ptr<Ints> slot_numbers;
    Picks picks;
};
void check_picks(const ChunkTable& table, const Picks& picks);

// Raises what was found wrong, if the copy is not what the chunks held.
void refuse_faults(const GatherOutcome& outcome);

// Of a stream, as Python names it: None, 'bytes', 'str', or a number of classes.
std::int64_t classes_of(nb::handle number);

// Copies picks into fresh arrays, as Gatherer.gather() does.
nb::list gather_now(const Chunks& chunks, const Picks& picks, std::size_t threads);

// A gather that the background thread fills. The arrays and the chunks belong to this object and are let go
// with the GIL held; the thread is given addresses only, and is done with them before this object goes. Both hold the
// work, which is plain memory.
class Copy {
public:
    Copy(std::shared_ptr<const Chunks> chunks, nb::handle slots, nb::handle index);
    ~Copy();
    Copy(const Copy&) = delete;
    Copy& operator=(const Copy&) = delete;

    nb::list result();
    bool done() const { return task_->done(); }

private:
    nb::list result_;
    std::shared_ptr<const Chunks> chunks_;
    std::shared_ptr<GatherWork> work_;
    std::shared_ptr<Task> task_;
};

// Runs of sequences that are brought into memory, as far as they are not there. The fetcher's threads are given
// addresses only, and are done with them before this object goes.
class Staged {
public:
    // base: the slots that `work` has its sources from, and nothing else; slots: of each run, in base.
    Staged(std::shared_ptr<const Chunks> base, std::vector<std::uint32_t> slots, nb::object fetcher,
           std::shared_ptr<StageWork> work);
    ~Staged() { disk().cancel(*work_); }
    Staged(const Staged&) = delete;
    Staged& operator=(const Staged&) = delete;

    bool done() const { return work_->done(); }
    nb::list faults();
    nb::list gather(nb::handle which);
    nb::tuple found();
    std::uint64_t memory();
    void forget();
    // One slot a run, once it is known; waits for that.
    const Chunks& outcome();

private:
    Disk& disk() const { return *nb::inst_ptr<Disk>(fetcher_); }

    std::shared_ptr<const Chunks> base_;
    std::vector<std::uint32_t> slots_;
    nb::object fetcher_;
    std::shared_ptr<StageWork> work_;
    std::shared_ptr<const Chunks> outcome_;
};

class Gatherer {
public:
    Gatherer(const std::vector<std::int64_t>& classes, bool bools);

    void add(std::int64_t slot, nb::sequence values, nb::sequence seals);
    void remove(std::int64_t slot);
    void clear();
    nb::list slots() const;
    std::int64_t sequences(std::int64_t slot) const;
    nb::list gather(nb::handle slots, nb::handle index, std::int64_t threads);
    nb::object gather_parts(nb::handle slots, nb::handle index, nb::handle ends);
    Copy* start(nb::handle slots, nb::handle index) { return new Copy(chunks_, slots, index); }
    Staged* stage(nb::handle fetcher, nb::handle slots, nb::handle index, nb::handle counts, nb::sequence keep);
    std::size_t lacking(nb::handle fetcher, nb::handle slots, nb::handle index, nb::handle counts, std::int64_t most,
                        std::int64_t pages);
    void adopt(std::int64_t slot, nb::handle staged, std::int64_t run);

    int traverse(visitproc visit, void* arg);

private:
    // For writing, with a place for `slot`. A gather that is copying without the GIL keeps the chunks it started with,
    // and so does a Copy; the count changes only under the GIL, so it tells whether there is one.
    Chunks& writable(std::int64_t slot);
    void must_hold(std::int64_t slot) const;
    // Raises unless rows of this column may join a stream's.
    void must_fit(const Column& column, std::size_t stream, std::int64_t slot) const;
    // Raises unless `slot` is a vacant one.
    void must_be_vacant(std::int64_t slot) const;

    const std::vector<std::int64_t> classes_;
    const bool bools_;
    std::shared_ptr<Chunks> chunks_;
};

}  // namespace feedline::bindings
