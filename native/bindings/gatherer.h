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

// The dtype and shape of a stream's rows, or values, which the first chunk fixes.
struct Column {
    nb::object dtype;
    nb::object row_shape;  // tuple; empty for a sparse stream
    bool inexact = false;  // whether it is of floating-point numbers, so that arrays are aligned
};

// Chunks, and references to their arrays. Immutable while a gather is running.
struct Chunks {
    explicit Chunks(const std::vector<std::int64_t>& classes) : table(classes), columns(classes.size()) {}
    Chunks(ChunkTable chunks, std::vector<Column> of_streams)
        : table(std::move(chunks)), columns(std::move(of_streams)), owners(table.slots()) {}

    ChunkTable table;
    std::vector<Column> columns;
    std::vector<std::vector<nb::object>> owners;  // by slot
};

// One stream of a chunk that add() has checked.
struct CheckedStream {
    ChunkSource source;
    Column column;
    std::int64_t sequences = 0;
    nb::capsule layout;  // the owner of source.dense.layout or source.dense.windows, if one of them is not null
};
// Check the tuple of one stream. `where` opens the messages of TypeError and ValueError.
CheckedStream check_dense(const std::string& where, nb::tuple value);
// classes: the stream's, other than kDense.
CheckedStream check_sparse(const std::string& where, nb::tuple value, std::int64_t classes);
// A seal with the current value of its eight bytes.
Seal check_seal(nb::handle array);

// The arguments of a gather. Created and destroyed with the GIL held.
struct PickArrays {
    PickArrays(nb::handle slots, nb::handle index);

    Ints indices;
    std::unique_ptr<Ints> slot_numbers;
    Picks picks;
};
// Raises IndexError for a bad slot or index.
void check_picks(const ChunkTable& table, const Picks& picks);

// Raises DataError unless the copy has the bytes of the chunks.
void raise_faults(const GatherOutcome& outcome);

// The classes of a stream, given as None, 'bytes', 'str', or a number of classes.
std::int64_t classes_of(nb::handle number);

// Copies picks into fresh arrays, as Gatherer.gather() does.
nb::list gather_now(const Chunks& chunks, const Picks& picks, std::size_t threads);

// A gather whose arrays the background thread fills. This object refers to the arrays and chunks, and releases them
// with the GIL held. The thread has only their addresses, and does not use them after this object is destroyed. Both
// share the work, which refers to no Python object.
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

// Runs of sequences that are being read into memory, as far as they are not there. The fetcher's threads have only
// addresses, and do not use them after this object is destroyed.
class Staged {
public:
    // base: the chunks from which `work` has its sources, and no others. slots: the slot of each run in base.
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
    // The result, with one slot for each run. Waits for the reads.
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
    std::size_t lacking(nb::handle fetcher, nb::handle slots, nb::handle index, nb::handle counts,
                        std::int64_t max_runs, std::int64_t max_pages);
    void adopt(std::int64_t slot, nb::handle staged, std::int64_t run);

    int traverse(visitproc visit, void* arg);

private:
    // The chunks for writing, with a place for `slot`. They are copied if a gather without the GIL, or a Copy, refers
    // to them. Their reference count is reliable here, as it changes only under the GIL.
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
