// Runs of sequences that are read into memory before they are gathered.
#include <nanobind/stl/string.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gatherer.h"
#include "paths.h"
#include "unlocked.h"

using namespace feedline;
using namespace feedline::bindings;
using namespace nb::literals;

namespace feedline::bindings {

// The arguments that name runs. Created and destroyed with the GIL held.
struct RunArrays {
    RunArrays(const ChunkTable& table, nb::handle slots, nb::handle index, nb::handle run_counts)
        : first(slots, index) {
        const Picks& picks = first.picks;
        check_picks(table, picks);
        runs = {picks.slots, picks.index, nullptr, picks.count};
        if (run_counts.is_none()) return;
        counts = std::make_unique<Ints>(run_counts, "counts", std::initializer_list<Ints::Type>{Ints::kInt64});
        if (counts->size() != picks.count)
            raise<nb::value_error>({"expected `index` and `counts` of equal length, got ", picks.count, " and ",
                                    counts->size()});
        runs.counts = counts->int64();
        const std::ptrdiff_t bad = first_bad_run(runs, table);
        if (bad < 0) return;
        const std::uint32_t slot = picks.slots == nullptr ? 0 : picks.slots[bad];
        raise<nb::index_error>({"place ", bad, ": expected a run inside the ", table.sequences()[slot],
                                " sequences of slot ", slot, ", got ", runs.counts[bad], " from ", picks.index[bad]});
    }

    PickArrays first;
    std::unique_ptr<Ints> counts;
    Runs runs;
};

static nb::object checked_fetcher(nb::handle fetcher) {
    if (!nb::isinstance<Disk>(fetcher)) raise<nb::type_error>({"expected a Fetcher, got ", describe(fetcher)});
    return nb::borrow(fetcher);
}

Staged* Gatherer::stage(nb::handle fetcher, nb::handle slots, nb::handle index, nb::handle counts, nb::sequence keep) {
    nb::object disk = checked_fetcher(fetcher);
    const RunArrays arrays(chunks_->table, slots, index, counts);
    if (nb::len(keep) != classes_.size())
        raise<nb::value_error>({"expected `keep` for ", classes_.size(), " streams, got ", nb::len(keep)});
    // Only the slots of the runs, as other slots may be added and removed.
    RunSlots run_slots(arrays.runs);
    for (std::size_t s = 0; s < classes_.size(); ++s) {
        const bool sparse = chunks_->table.streams()[s].sparse();
        for (const std::uint32_t slot : run_slots.slots)
            if (sparse ? chunks_->table.sparse(s)[slot].spans : chunks_->table.dense(s)[slot].windows != nullptr)
                raise<nb::value_error>({"stream ", s, ": expected rows without gaps or windows, got ",
                                        sparse ? "spans" : "windows", ", which cannot be staged"});
    }
    auto base = std::make_shared<Chunks>(chunks_->table.only(run_slots.slots), chunks_->columns);
    for (std::size_t k = 0; k < run_slots.slots.size(); ++k) base->owners[k] = chunks_->owners[run_slots.slots[k]];
    std::vector<StageWork::Stream> streams = stage_streams(base->table);
    for (std::size_t s = 0; s < streams.size(); ++s) {
        const auto bits = nb::cast<unsigned>(nb::object(keep[s]));
        streams[s].keep_rows = (bits & 1) != 0;
        streams[s].keep_bounds = (bits & 2) != 0;
    }
    const Runs runs{run_slots.places.data(), arrays.runs.index, arrays.runs.counts, arrays.runs.count};
    const Disk& from = *nb::inst_ptr<Disk>(disk);
    auto work = std::make_shared<StageWork>(std::move(streams), runs, from.mapped, from.pool);
    return new Staged(std::move(base), std::move(run_slots.places), std::move(disk), std::move(work));
}

std::size_t Gatherer::lacking(nb::handle fetcher, nb::handle slots, nb::handle index, nb::handle counts,
                              std::int64_t max_runs, std::int64_t max_pages) {
    const nb::object disk = checked_fetcher(fetcher);
    const RunArrays arrays(chunks_->table, slots, index, counts);
    if (max_runs < 0 || max_pages < 1)
        raise<nb::value_error>({"expected max_runs >= 0 and max_pages >= 1, got ", max_runs, " and ", max_pages});
    return count_lacking(chunks_->table, arrays.runs, *nb::inst_ptr<Disk>(disk)->mapped,
                         static_cast<std::size_t>(max_runs), static_cast<std::size_t>(max_pages));
}

void Gatherer::adopt(std::int64_t slot, nb::handle staged, std::int64_t run) {
    if (slot < 0 || slot >= kMaxSlots) must_be_vacant(slot);
    if (!nb::isinstance<Staged>(staged)) raise<nb::type_error>({"expected a Staged, got ", describe(staged)});
    const Chunks& outcome = nb::inst_ptr<Staged>(staged)->outcome();
    const ChunkTable& from = outcome.table;
    if (!from.same_streams(chunks_->table))
        throw nb::value_error("expected a Staged of a Gatherer with the same streams, got one with other streams");
    if (run < 0 || static_cast<std::size_t>(run) >= from.slots() || from.sequences()[static_cast<std::size_t>(run)] == 0)
        raise<nb::index_error>({"expected a run that could be read, got number ", run});
    for (std::size_t s = 0; s < classes_.size(); ++s) must_fit(outcome.columns[s], s, slot);
    must_be_vacant(slot);
    Chunks& chunks = writable(slot);
    const auto at = static_cast<std::size_t>(slot);
    std::vector<nb::object> owner(1, nb::borrow(staged));
    chunks.table.hold(at, from, static_cast<std::size_t>(run));
    chunks.owners[at] = std::move(owner);
}

Staged::Staged(std::shared_ptr<const Chunks> base, std::vector<std::uint32_t> slots, nb::object fetcher,
               std::shared_ptr<StageWork> work)
    : base_(std::move(base)), slots_(std::move(slots)), fetcher_(std::move(fetcher)), work_(std::move(work)) {
    disk().fetcher.start(work_);
}

const Chunks& Staged::outcome() {
    if (outcome_ != nullptr) return *outcome_;
    if (work_->made_before_fork() && !work_->done()) {
        // The threads that would have read exist only in the parent.
        work_ = work_->copy_not_begun();
        disk().fetcher.start(work_);
    }
    disk().wait(*work_);
    if (outcome_ != nullptr) return *outcome_;  // another thread has set it meanwhile
    disk().disk_bytes += work_->disk_bytes();
    outcome_ = std::make_shared<const Chunks>(base_->table.staged(slots_, work_), base_->columns);
    return *outcome_;
}

nb::list Staged::faults() {
    outcome();
    nb::list tuples;
    for (const StageWork::Fault& fault : work_->faults()) {
        const std::string path = fault.error == 0 ? std::string() : work_->files()[fault.file]->path();
        tuples.append(nb::make_tuple(fault.pick, fault.stream, fault.error, path_of_bytes(path), fault.at));
    }
    return tuples;
}

nb::tuple Staged::found() {
    outcome();
    return nb::make_tuple(work_->pieces_in_files(), work_->missing_pieces(), work_->disk_bytes());
}

std::uint64_t Staged::memory() {
    outcome();
    return work_->memory();
}

void Staged::forget() {
    outcome();
    const Unlocked unlocked;
    work_->forget();
}

nb::list Staged::gather(nb::handle which) {
    const Chunks& chunks = outcome();
    const std::size_t n = chunks.table.slots();
    std::vector<std::uint32_t> slots;
    if (which.is_none()) {
        slots.resize(n);
        std::iota(slots.begin(), slots.end(), 0u);
    } else {
        const Ints numbers(which, "which", {Ints::kInt64});
        for (std::size_t i = 0; i < numbers.size(); ++i) {
            const std::int64_t run = numbers.int64()[i];
            if (run < 0 || static_cast<std::size_t>(run) >= n)
                raise<nb::index_error>({"place ", i, ": expected a run from 0 to below ", n, ", got ", run});
            slots.push_back(static_cast<std::uint32_t>(run));
        }
    }
    for (std::size_t i = 0; i < slots.size(); ++i)
        if (chunks.table.sequences()[slots[i]] == 0)
            raise<nb::value_error>({"place ", i, ": expected a run that could be read, got one of faults()"});
    const std::vector<std::int64_t> index(slots.size(), 0);
    return gather_now(chunks, {slots.data(), index.data(), slots.size()}, 1);
}

}  // namespace feedline::bindings

void bind_staged(nb::module_& m) {
    nb::class_<Staged>(m, "Staged",
                       "Runs of sequences that are being read into memory, made by Gatherer.stage(). Its methods\n"
                       "wait for the reads, without the GIL. Ctrl-C interrupts the wait. Safe to drop before the\n"
                       "reads have ended.")
        .def("faults", &Staged::faults,
             "Return the runs that could not be read: tuples (run, stream, errno, path, offset of the first byte\n"
             "that could not be read). errno is -1 if the file ended too early, and 0 if offsets or bounds of rows\n"
             "are impossible.")
        .def("gather", &Staged::gather, "which"_a.none() = nb::none(),
             "Return the first sequence of each run in `which` (int64[n], None: all runs), in that order, as\n"
             "Gatherer.gather() does. ValueError for a run that could not be read.")
        .def("found", &Staged::found,
             "Return (pieces in files, pieces of which the page cache lacked a page, bytes read for those).")
        .def("forget", &Staged::forget,
             "Evict the pages from the page cache that were read through it for other processes (from files added\n"
             "with `share`).")
        .def_prop_ro("memory", &Staged::memory, "Bytes of memory that hold the bytes read.")
        .def_prop_ro("done", &Staged::done, "Whether all reads have ended.");
}
