// Gathers: this file plans and allocates the outputs, and fills them without the GIL.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "faults.h"
#include "fresh_arrays.h"
#include "gatherer.h"
#include "unlocked.h"

namespace feedline::bindings {

// A copy this small ends before another thread could use the GIL, and to acquire it again may take 5 ms.
static constexpr std::size_t kKeepGil = std::size_t{16} << 10;

PickArrays::PickArrays(nb::handle slots, nb::handle index) : indices(index, "index", {Ints::kInt64}) {
    picks = {nullptr, indices.int64(), indices.size()};
    if (slots.is_none()) return;
    slot_numbers = std::make_unique<Ints>(slots, "slots", std::initializer_list<Ints::Type>{Ints::kUint32});
    if (slot_numbers->size() != picks.count)
        raise<nb::value_error>({"expected `slots` and `index` of equal length, got ", slot_numbers->size(), " and ",
                                picks.count});
    picks.slots = slot_numbers->uint32();
}

void check_picks(const ChunkTable& table, const Picks& picks) {
    if (!table.streams()[0].known)
        throw nb::value_error("expected at least one chunk before gather, got none; call add() first");
    const std::ptrdiff_t place = first_bad_pick(picks, table.sequences().data(), table.slots());
    if (place < 0) return;
    const std::uint32_t slot = picks.slots == nullptr ? 0 : picks.slots[place];
    if (!table.holds(slot))
        raise<nb::index_error>({"place ", place, ": expected a slot that holds a chunk, got slot ", slot});
    raise<nb::index_error>({"place ", place, ": expected an index from 0 to below ", table.sequences()[slot],
                            " in slot ", slot, ", got ", picks.index[place]});
}

void raise_faults(const GatherOutcome& outcome) {
    if (const void* address = outcome.unreadable.load()) raise_fault("unreadable", address_of(address));
    if (const void* address = outcome.broken.load()) raise_fault("cut", address_of(address));
    if (const void* address = outcome.changed.load()) raise_fault("changed", address_of(address));
}

// Raises the fault of a copy, if it has one.
static void raise_outcome(const GatherOutcome& outcome, const std::vector<GatherJob>& jobs, const Chunks& chunks,
                           const Picks& picks, const nb::list& result) {
    if (outcome.good()) return;
    raise_faults(outcome);
    nb::list entries;
    for (const BadEntry& bad : blank_bad_entries(jobs, chunks.table, picks)) {
        nb::object classes = nb::none();  // a bool
        if (bad.classes >= 0) classes = nb::int_(bad.classes);
        if (bad.classes == kText) classes = nb::str("str");
        entries.append(nb::make_tuple(bad.place, bad.stream, bad.entry, classes, address_of(bad.source)));
    }
    raise_fault("BadEntriesError", result, entries);
}

// ---- one gather -----------------------------------------------------------------------------------------

// A gather whose outputs are allocated, with the jobs that fill them.
struct Prepared {
    nb::list result;
    std::vector<GatherJob> jobs;
    std::size_t bytes = 0;
};

static GatherJob plan(const ChunkTable& table, std::size_t s, const Picks& picks, std::int64_t* offsets) {
    GatherOutcome outcome;
    GatherJob job = plan_gather(table, s, picks, offsets, outcome);
    raise_faults(outcome);
    return job;
}

static Rows rows_of(const Chunks& chunks, std::size_t s) {
    return {chunks.columns[s].row_shape, chunks.columns[s].dtype, chunks.table.streams()[s].item_bytes};
}

// The arrays of one stream, as gather() returns them.
static nb::object stream_of(const GatherJob& job, nb::object rows, nb::object indptr, nb::object indices,
                            nb::object offsets) {
    if (!job.is_sparse) return nb::make_tuple(rows, offsets);
    if (job.classes < 0) return nb::make_tuple(indptr, rows, offsets);
    return nb::make_tuple(indptr, indices, rows, offsets);
}

static Prepared prepare(const Chunks& chunks, const Picks& picks) {
    check_picks(chunks.table, picks);
    Prepared prepared;
    const std::size_t streams = chunks.columns.size();
    prepared.jobs.reserve(streams);
    for (std::size_t s = 0; s < streams; ++s) {
        nb::object offsets = nb::none(), indptr = nb::none(), indices = nb::none();
        if (needs_offsets(chunks.table, s, picks)) offsets = new_numbers<std::int64_t>(picks.count + 1, numpy().int64);
        GatherJob job = plan(chunks.table, s, picks, offsets.is_none() ? nullptr : data_of<std::int64_t>(offsets));
        const nb::object rows = new_rows(job.num_items(), rows_of(chunks, s), chunks.columns[s].inexact);
        job.rows = memory(rows);
        prepared.bytes += job.item_memory() + job.index_memory();
        if (job.is_sparse) {
            indptr = new_numbers<std::int64_t>(static_cast<std::size_t>(job.num_rows) + 1, numpy().int64);
            job.indptr = data_of<std::int64_t>(indptr);
            job.indptr[0] = 0;  // also if there is no sequence to copy
        }
        if (job.classes >= 0) {
            indices = new_numbers<std::int32_t>(static_cast<std::size_t>(job.num_values), numpy().int32);
            job.indices = data_of<std::int32_t>(indices);
        }
        prepared.result.append(stream_of(job, rows, indptr, indices, offsets));
        prepared.jobs.push_back(std::move(job));
    }
    return prepared;
}

nb::list gather_now(const Chunks& chunks, const Picks& picks, std::size_t threads) {
    const Prepared prepared = prepare(chunks, picks);
    GatherOutcome outcome;
    if (prepared.bytes <= kKeepGil) {
        run_all(prepared.jobs, chunks.table, picks, prepared.bytes, 1, outcome);
    } else {
        const Unlocked unlocked;
        run_all(prepared.jobs, chunks.table, picks, prepared.bytes, threads, outcome);
    }
    raise_outcome(outcome, prepared.jobs, chunks, picks, prepared.result);
    return prepared.result;
}

nb::list Gatherer::gather(nb::handle slots, nb::handle index, std::int64_t threads) {
    if (threads < 1) raise<nb::value_error>({"expected threads >= 1, got ", threads});
    const PickArrays arrays(slots, index);
    const std::shared_ptr<const Chunks> chunks = chunks_;  // a reference, as other threads may change this object
    return gather_now(*chunks, arrays.picks, static_cast<std::size_t>(threads));
}

// ---- many gathers at once -------------------------------------------------------------------------------

namespace {

struct Part {
    Picks picks;
    std::vector<GatherJob> jobs;
    nb::list result;
};

}  // namespace

// Plans a stream of all parts, and allocates its arrays. Returns their bytes.
static std::size_t prepare_parts(const Chunks& chunks, std::size_t s, std::vector<Part>& parts) {
    const ChunkTable::Stream& stream = chunks.table.streams()[s];
    const std::size_t m = parts.size();
    std::vector<char> ragged(m);
    PartsArray offsets(number_rows(numpy().int64, sizeof(std::int64_t)));
    for (std::size_t p = 0; p < m; ++p) {
        ragged[p] = needs_offsets(chunks.table, s, parts[p].picks);
        offsets.add(ragged[p] ? static_cast<std::int64_t>(parts[p].picks.count) + 1 : 0);
    }
    if (stream.ever_ragged) offsets.make();
    PartsArray rows(rows_of(chunks, s)), indptr(number_rows(numpy().int64, sizeof(std::int64_t)));
    PartsArray indices(number_rows(numpy().int32, sizeof(std::int32_t)));
    std::size_t bytes = 0;
    for (std::size_t p = 0; p < m; ++p) {
        const Picks& picks = parts[p].picks;
        GatherJob job = plan(chunks.table, s, picks, ragged[p] ? offsets.memory<std::int64_t>(p) : nullptr);
        rows.add(job.num_items());
        indptr.add(job.num_rows + 1);
        indices.add(job.num_items());
        bytes += job.item_memory() + job.index_memory();
        if (ragged[p]) bytes += (picks.count + 1) * sizeof(std::int64_t);
        if (job.is_sparse) bytes += static_cast<std::size_t>(job.num_rows + 1) * sizeof(std::int64_t);
        parts[p].jobs.push_back(std::move(job));
    }
    rows.make();
    if (stream.sparse()) indptr.make();
    if (stream.classes >= 0) indices.make();
    for (std::size_t p = 0; p < m; ++p) {
        GatherJob& job = parts[p].jobs[s];
        job.rows = rows.memory<std::byte>(p);
        nb::object bounds = nb::none(), columns = nb::none();
        if (job.is_sparse) {
            job.indptr = indptr.memory<std::int64_t>(p);
            job.indptr[0] = 0;
            bounds = indptr.array(p);
        }
        if (job.classes >= 0) {
            job.indices = indices.memory<std::int32_t>(p);
            columns = indices.array(p);
        }
        parts[p].result.append(
            stream_of(job, rows.array(p), bounds, columns, ragged[p] ? offsets.array(p) : nb::none()));
    }
    return bytes;
}

nb::object Gatherer::gather_parts(nb::handle slots, nb::handle index, nb::handle ends) {
    const PickArrays arrays(slots, index);
    const Picks& picks = arrays.picks;
    const Ints bounds(ends, "ends", {Ints::kInt64});
    const std::int64_t* const end = bounds.int64();
    if (bounds.size() < 1 || first_bad_bound(end, bounds.size() - 1, static_cast<std::int64_t>(picks.count)) >= 0)
        raise<nb::value_error>({"expected `ends` to begin at 0, never decrease, and end at ", picks.count});
    const std::shared_ptr<const Chunks> chunks = chunks_;
    check_picks(chunks->table, picks);
    std::vector<Part> parts(bounds.size() - 1);
    for (std::size_t p = 0; p < parts.size(); ++p) {
        const std::int64_t at = end[p];
        parts[p].picks = {picks.slots == nullptr ? nullptr : picks.slots + at, picks.index + at,
                          static_cast<std::size_t>(end[p + 1] - at)};
    }
    std::size_t bytes = 0;
    for (std::size_t s = 0; s < chunks->columns.size(); ++s) bytes += prepare_parts(*chunks, s, parts);
    GatherOutcome outcome;
    const auto copy = [&] {
        for (const Part& part : parts) run_jobs(part.jobs, chunks->table, part.picks, 0, part.picks.count, outcome);
    };
    if (bytes <= kKeepGil) {
        copy();
    } else {
        const Unlocked unlocked;
        copy();
    }
    if (!outcome.good()) return nb::none();
    nb::list results;
    for (const Part& part : parts) results.append(part.result);
    return nb::make_tuple(results, bytes);
}

// ---- copies in the background ---------------------------------------------------------------------------

Copy::Copy(std::shared_ptr<const Chunks> chunks, nb::handle slots, nb::handle index)
    : chunks_(std::move(chunks)), work_(std::make_shared<GatherWork>(PickArrays(slots, index).picks)) {
    Prepared prepared = prepare(*chunks_, work_->picks);
    result_ = std::move(prepared.result);
    work_->jobs = std::move(prepared.jobs);
    task_ = start_gather(work_, chunks_->table, prepared.bytes);
}

Copy::~Copy() {
    if (task_->done()) return;
    const Unlocked unlocked;
    Background::of_this_process().abandon(*task_);
}

nb::list Copy::result() {
    while (!task_->done()) {
        bool done;
        {
            const Unlocked unlocked;
            done = Background::of_this_process().finish(*task_, kSignalPeriod);
        }
        if (!done && PyErr_CheckSignals() != 0) throw nb::python_error();
    }
    if (chunks_ != nullptr) raise_outcome(work_->outcome, work_->jobs, *chunks_, work_->picks, result_);
    chunks_.reset();
    return result_;
}

}  // namespace feedline::bindings

void bind_copy(nanobind::module_& m) {
    using namespace feedline::bindings;
    nb::class_<Copy>(m, "Copy",
                     "A gather in progress, made by Gatherer.start(). Safe to drop before its end, which stops it.")
        .def("result", &Copy::result,
             "Return the arrays that gather() would have returned, the same ones at every call. Copies the parts\n"
             "that have not been begun and waits for the others. Releases the GIL. Ctrl-C interrupts the wait, after\n"
             "which this may be called again.")
        .def_prop_ro("done", &Copy::done, "Whether result() would return at once.");
}
