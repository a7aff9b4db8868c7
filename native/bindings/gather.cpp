#include "feedline/gather.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <nanobind/stl/string.h>
#include <numeric>
#include <string>
#include <unordered_map>
#include <vector>

#include "arrays.h"
#include "faults.h"
#include "feedline/background.h"
#include "feedline/guard.h"
#include "feedline/stage.h"
#include "fetch.h"
#include "threads.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace feedline;
using namespace feedline::bindings;
using namespace nb::literals;

// A copy this small is over before another thread could use the GIL, and getting it back may take 5 ms.
static constexpr std::size_t kKeepGil = std::size_t{16} << 10;
// Starting a thread costs about what copying 100 KB does.
static constexpr std::size_t kThreadedBytes = std::size_t{1} << 20;
// What the background thread copies before it looks whether the rest is still wanted: some ten microseconds.
static constexpr std::size_t kPartBytes = std::size_t{128} << 10;
// Where numbers begin that libraries of linear algebra compute with: these add in another order where numbers begin at
// another place modulo the width of a vector, so results would depend on where a run began.
static constexpr std::size_t kAlign = 64;
static constexpr std::size_t kMaxSlots = std::size_t{1} << 24;
// Sequences whose entries are looked at together once they are copied, while the caches have them.
static constexpr std::size_t kLookAt = 512;
static constexpr std::int64_t kDense = -1, kBytes = -2, kText = -3;  // in the place of a number of classes

// ---- what a stream is and which chunks are held ---------------------------------------------------------

namespace {

struct Stream {
    std::int64_t classes = kDense;
    bool sparse = false;         // held as a SparseSource: sparse, or byte strings
    bool bools = false;          // whose bytes are looked at
    bool ever_ragged = false;
    bool ever_strided = false;
    bool known = false;          // the first chunk fixes the fields below
    bool inexact = false;        // not of integers, times or the like
    nb::object dtype;            // of rows, or of values
    nb::object row_shape;        // tuple; empty for a sparse stream
    std::size_t item_bytes = 0;  // of a row, or of a value
};

// The seals of the files that some chunks are mapped from; mostly one, and the same for many chunks.
struct Seals {
    std::vector<Seal> seals;
    std::size_t slots = 0;  // that have these; with none, the place is free
};

// Everything a gather needs, immutable while one is running.
struct Table {
    explicit Table(const std::vector<std::int64_t>& classes)
        : streams(classes.size()), dense(classes.size()), sparse(classes.size()) {
        for (std::size_t s = 0; s < streams.size(); ++s) {
            streams[s].classes = classes[s];
            streams[s].sparse = classes[s] != kDense;
        }
    }

    std::vector<Stream> streams;
    std::vector<std::int64_t> sequences;            // by slot; 0 if vacant, so that no index can be right
    std::vector<char> held;                         // by slot
    std::vector<std::vector<DenseSource>> dense;    // by stream, by slot; empty for a sparse stream
    std::vector<std::vector<SparseSource>> sparse;  // the other way round
    std::vector<std::vector<nb::object>> owners;    // by slot: the arrays that the sources point into
    std::vector<std::shared_ptr<const StageWork>> origins;  // by slot: what brought it into memory, or null
    std::vector<std::uint32_t> sealed_by;           // by slot: a place in the next
    std::vector<Seals> seals{Seals{}};              // the first is none at all

    // The place of `wanted` in `seals`, for one more slot.
    std::uint32_t place_of(const std::vector<Seal>& wanted) {
        const auto same = [&](const Seals& held) {
            return std::equal(held.seals.begin(), held.seals.end(), wanted.begin(), wanted.end(),
                              [](const Seal& a, const Seal& b) { return a.bytes == b.bytes && a.expected == b.expected; });
        };
        auto at = seals.begin();
        if (!wanted.empty()) {
            at = std::find_if(at + 1, seals.end(), [&](const Seals& held) { return held.slots != 0 && same(held); });
            if (at == seals.end())
                at = std::find_if(seals.begin() + 1, seals.end(), [](const Seals& held) { return held.slots == 0; });
            if (at == seals.end()) at = seals.emplace(at);
            at->seals = wanted;
        }
        ++at->slots;
        return static_cast<std::uint32_t>(at - seals.begin());
    }
};

// What is wrong with what was copied, the first of each; filled by any number of threads.
struct Outcome {
    std::atomic<const void*> unreadable{nullptr};  // an address
    std::atomic<const void*> changed{nullptr};     // bounds that fall now, and did not when their chunk came
    std::atomic<const void*> broken{nullptr};      // a seal
    std::atomic<bool> bad{false};                  // indices out of range, or bools that are none

    bool good() const { return !unreadable.load() && !changed.load() && !broken.load() && !bad.load(); }
};

// One output being made: planned, allocated, then filled without the GIL.
struct Job {
    bool is_sparse;
    bool bools;
    std::int64_t classes;  // of the stream: kDense, kBytes, kText, or the number of classes
    bool is_strided = false;  // some chunk's rows are views
    std::size_t item_bytes;
    const DenseSource* dense = nullptr;
    const SparseSource* sparse = nullptr;
    std::unique_ptr<const std::byte*[]> from;  // ragged only
    std::unique_ptr<SparseRun[]> runs;         // sparse only
    std::int64_t* offsets = nullptr;
    std::byte* rows = nullptr;  // or values
    std::int64_t* indptr = nullptr;
    std::int32_t* indices = nullptr;

    // Fills the places [begin, end), and tells what is wrong with them. Reads mapped files: runs under `guarded`.
    void copy(const Picks& picks, std::size_t begin, std::size_t end, Outcome& outcome) const {
        if (is_sparse) {
            for (std::size_t at = begin; at < end; at += kLookAt) {
                const std::size_t stop = std::min(at + kLookAt, end);
                copy_sparse(runs.get(), item_bytes, indptr, indices, rows, at, stop);
                if (!rise(at, stop)) {
                    std::size_t changed = at;
                    while (changed + 1 < stop && rise(changed, changed + 1)) ++changed;
                    outcome.changed = runs[changed].indptr;
                }
                const auto from_value = static_cast<std::size_t>(runs[at].out_value);
                const auto to_value = static_cast<std::size_t>(runs[stop].out_value);
                if (classes >= 0) {
                    const auto width = static_cast<std::uint32_t>(classes);
                    if (first_bad_index(indices, from_value, to_value, width) < to_value) outcome.bad = true;
                } else if (classes == kText && outcome.changed.load(std::memory_order_relaxed) == nullptr) {
                    // Where the first one begins is not read from indptr: another thread may be writing it.
                    const SparseRun& run = runs[at];
                    const auto strings = static_cast<std::size_t>(runs[stop].out_row - run.out_row);
                    if (first_bad_text(rows, run.out_value, indptr + run.out_row + 1, strings) < strings)
                        outcome.bad = true;
                }
            }
        } else if (offsets != nullptr) {
            if (is_strided)
                copy_strided_ragged(picks, dense, from.get(), offsets, item_bytes, rows, begin, end);
            else
                copy_ragged(from.get(), offsets, item_bytes, rows, begin, end);
            if (bools) look(static_cast<std::size_t>(offsets[begin]), static_cast<std::size_t>(offsets[end]), outcome);
        } else {
            if (is_strided)
                copy_strided_rows(picks, dense, item_bytes, rows, begin, end);
            else
                copy_rows(picks, dense, item_bytes, rows, begin, end);
            if (bools) look(begin, end, outcome);
        }
    }

    // Whether the bounds of rows that were copied for the places [begin, end) are as they were planned.
    bool rise(std::size_t begin, std::size_t end) const {
        const SparseRun &first = runs[begin], &last = runs[end];
        return rises(indptr + first.out_row + 1, static_cast<std::size_t>(last.out_row - first.out_row),
                     first.out_value, last.out_value);
    }

    // Of rows of bools.
    void look(std::size_t begin, std::size_t end, Outcome& outcome) const {
        if (first_bad_bool(rows, begin * item_bytes, end * item_bytes) < end * item_bytes) outcome.bad = true;
    }
};

// A gather whose outputs are sized and allocated, with what they are filled from.
struct Prepared {
    std::shared_ptr<const Table> table;
    nb::list result;
    std::vector<Job> jobs;
    std::size_t bytes = 0;
};

// Places [begin, end) of all jobs.
static void run_part(const std::vector<Job>& jobs, const Table& table, const Picks& picks, std::size_t begin,
                     std::size_t end, Outcome& outcome) {
    if (outcome.unreadable.load(std::memory_order_relaxed) != nullptr) return;
    const void* fault = guarded([&] {
        for (const Job& job : jobs) job.copy(picks, begin, end, outcome);
        if (table.seals.size() == 1) return;
        // Last: what was cut before it was copied is cut by now. Neighbours mostly share a file.
        std::uint32_t before = 0;
        for (std::size_t i = begin; i < end; ++i) {
            const std::uint32_t place = table.sealed_by[picks.slots == nullptr ? 0 : picks.slots[i]];
            if (place == before) continue;
            before = place;
            const std::vector<Seal>& seals = table.seals[place].seals;
            if (const std::byte* broken = first_broken(seals.data(), seals.size())) outcome.broken = broken;
        }
    });
    if (fault != nullptr) outcome.unreadable = fault;
}


// The arguments of a gather, looked at while the GIL is held.
struct PickArrays {
    PickArrays(nb::handle slots, nb::handle index) : indices(index, "index", {Ints::kInt64}) {
        picks = {nullptr, indices.int64(), indices.size()};
        if (slots.is_none()) return;
        slot_numbers =
            std::make_unique<Ints>(slots, "slots", std::initializer_list<Ints::Type>{Ints::kUint32});
        if (slot_numbers->size() != picks.count)
            raise<nb::value_error>("expected `slots` and `index` of equal length, got " +
                                   number(slot_numbers->size()) + " and " + number(picks.count));
        picks.slots = slot_numbers->uint32();
    }

    Ints indices;
    std::unique_ptr<Ints> slot_numbers;
    Picks picks;
};

// What the thread follows is its own: the caller may write to its arrays as soon as start() has returned.
struct Work {
    explicit Work(const Picks& given) : index(given.index, given.index + given.count) {
        if (given.slots != nullptr) slots.assign(given.slots, given.slots + given.count);
        picks = {given.slots == nullptr ? nullptr : slots.data(), index.data(), given.count};
    }

    std::vector<std::uint32_t> slots;
    std::vector<std::int64_t> index;
    Picks picks;
    std::vector<Job> jobs;
    Outcome outcome;
};

// A gather that the background thread fills. The arrays and the chunks belong to this object and are let go
// with the GIL held; the thread is given addresses only, and is done with them before this object goes. Both hold the
// work, which is plain memory.
class Copy {
public:
    Copy(Prepared prepared, std::shared_ptr<Work> work);
    ~Copy();
    Copy(const Copy&) = delete;
    Copy& operator=(const Copy&) = delete;

    nb::list result();
    bool done() const { return task_->done(); }

private:
    nb::list result_;
    std::shared_ptr<const Table> table_;
    std::shared_ptr<Work> work_;
    std::shared_ptr<Task> task_;
};

// Runs of sequences that are brought into memory, as far as they are not there. The fetcher's threads are given
// addresses only, and are done with them before this object goes.
class Staged {
public:
    // base: the slots that `work` has its sources from, and nothing else; slots: of each run, in base.
    Staged(std::shared_ptr<const Table> base, std::vector<std::uint32_t> slots, nb::object fetcher,
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
    const Table& outcome();

private:
    Disk& disk() const { return *nb::inst_ptr<Disk>(fetcher_); }

    std::shared_ptr<const Table> base_;
    std::vector<std::uint32_t> slots_;
    nb::object fetcher_;
    std::shared_ptr<StageWork> work_;
    std::shared_ptr<const Table> outcome_;
};

class Gatherer {
public:
    Gatherer(const std::vector<std::int64_t>& classes, bool bools)
        : classes_(classes), bools_(bools), table_(std::make_shared<Table>(classes)) {
        if (classes.empty()) throw nb::value_error("expected at least one stream, got an empty list");
    }

    void add(std::int64_t slot, nb::sequence values, nb::sequence seals);
    void remove(std::int64_t slot);
    void clear();
    nb::list slots() const;
    std::int64_t sequences(std::int64_t slot) const;
    nb::list gather(nb::handle slots, nb::handle index, std::int64_t threads);
    nb::object gather_parts(nb::handle slots, nb::handle index, nb::handle ends);
    Copy* start(nb::handle slots, nb::handle index);
    Staged* stage(nb::handle fetcher, nb::handle slots, nb::handle index, nb::handle counts, nb::sequence keep);
    std::size_t lacking(nb::handle fetcher, nb::handle slots, nb::handle index, nb::handle counts, std::int64_t most,
                        std::int64_t pages);
    void adopt(std::int64_t slot, nb::handle staged, std::int64_t pick);

    int traverse(visitproc visit, void* arg) {
        // A table that a gather or a copy under way holds too is not this object's alone to give up.
        if (table_.use_count() != 1) return 0;
        for (const Stream& stream : table_->streams) {
            Py_VISIT(stream.dtype.ptr());
            Py_VISIT(stream.row_shape.ptr());
        }
        for (const auto& arrays : table_->owners)
            for (const nb::object& array : arrays) Py_VISIT(array.ptr());
        return 0;
    }

private:
    // The table for writing. A gather that is copying without the GIL keeps the one it started with, chunks
    // included, and so does a Copy; the count changes only under the GIL, so it tells whether there is one.
    Table& writable() {
        if (table_.use_count() > 1) table_ = std::make_shared<Table>(*table_);
        return *table_;
    }
    Table& with_room(std::int64_t slot);
    bool holds(std::int64_t slot) const {
        return slot >= 0 && static_cast<std::size_t>(slot) < table_->held.size() && table_->held[slot];
    }
    void must_hold(std::int64_t slot) const {
        if (!holds(slot))
            raise<nb::index_error>("slot " + number(slot) + " holds no chunk; held: " + text(slots()));
    }

    bool is_sparse(std::size_t stream) const { return classes_[stream] != kDense; }

    const std::vector<std::int64_t> classes_;
    const bool bools_;
    std::shared_ptr<Table> table_;
};

// ---- add ------------------------------------------------------------------------------------------------

// What add() learns about one stream of a chunk before anything is stored.
struct Arrival {
    DenseSource dense;
    SparseSource sparse;
    nb::object dtype, row_shape;
    std::size_t item_bytes = 0;
    std::int64_t sequences = 0;
    bool is_bool = false, is_inexact = false;
    nb::capsule layout;  // owner of dense.layout, if there is one
};

}  // namespace

// Checks one boundary array ("offsets", "indptr"): from 0, never falling, to `end`.
static void check_bounds(const std::string& where, const char* name, const Ints& bounds, std::int64_t end,
                         const char* unit) {
    const std::string what = (where.empty() ? "" : where + ": ") + "expected `" + name + "` to ";
    if (bounds.size() == 0) raise<nb::value_error>(what + "have at least one entry, got none");
    const std::int64_t* data = bounds.int64();
    const std::size_t n = bounds.size() - 1;
    std::ptrdiff_t fault = -1;
    std::int64_t found = 0, next = 0;
    const void* unreadable;
    {
        const Unlocked unlocked;
        unreadable = guarded([&] {
            fault = first_fault(data, n, end);
            if (fault < 0) return;
            found = data[fault];
            if (static_cast<std::size_t>(fault) < n) next = data[fault + 1];
        });
    }
    if (unreadable != nullptr) raise_fault("unreadable", address_of(unreadable));
    if (fault < 0) return;
    const auto at = static_cast<std::size_t>(fault);
    if (at == 0 && found != 0) raise<nb::value_error>(what + "start at 0, got " + number(found));
    if (at == n)
        raise<nb::value_error>(what + "end at the number of " + unit + ", " + number(end) + ", got " +
                               number(found));
    raise<nb::value_error>(what + "never fall, got " + number(found) + " then " + number(next) + " at entries " +
                           number(fault) + " and " + number(fault + 1));
}

// Of rows with strides, in a capsule that owns it.
static nb::capsule layout_of(nb::handle rows, std::size_t item_bytes) {
    const nb::tuple lengths(rows.attr("shape")), strides(rows.attr("strides"));
    std::vector<std::size_t> shape;
    std::vector<std::ptrdiff_t> steps;
    for (std::size_t axis = 0; axis < lengths.size(); ++axis) {
        shape.push_back(nb::cast<std::size_t>(lengths[axis]));
        steps.push_back(nb::cast<std::ptrdiff_t>(strides[axis]));
    }
    auto* layout = new RowLayout(RowLayout::of(shape.data(), steps.data(), shape.size(), item_bytes));
    return nb::capsule(layout, [](void* p) noexcept { delete static_cast<RowLayout*>(p); });
}

static Arrival examine_dense(const std::string& where, nb::tuple value) {
    if (value.size() != 2)
        raise<nb::value_error>(where + ": expected (rows, offsets) for a dense stream, got a tuple of " +
                               number(value.size()));
    Arrival arrival;
    // Views are copied from where they lie, but for sequences of several rows, which are copied in one go.
    const bool strided = value[1].is_none() && nb::isinstance(value[0], numpy().ndarray) &&
                         !nb::cast<bool>(value[0].attr("flags")["C_CONTIGUOUS"]) &&
                         !nb::cast<bool>(value[0].attr("dtype").attr("hasobject"));
    const nb::object rows = strided ? nb::borrow(value[0]) : checked_ndarray(where, "rows", value[0]);
    const nb::tuple shape(rows.attr("shape"));
    if (shape.size() == 0)
        raise<nb::value_error>(where + ": expected `rows` to have at least one axis, got " + describe(rows));
    arrival.dtype = rows.attr("dtype");
    arrival.row_shape = shape.attr("__getitem__")(nb::slice(nb::int_(1), nb::none(), nb::none()));
    arrival.dense.num_rows = nb::cast<std::int64_t>(shape[0]);
    arrival.item_bytes = nb::cast<std::size_t>(arrival.dtype.attr("itemsize"));
    for (std::size_t axis = 1; axis < shape.size(); ++axis)
        arrival.item_bytes *= nb::cast<std::size_t>(shape[axis]);
    if (strided) {
        arrival.layout = layout_of(rows, nb::cast<std::size_t>(arrival.dtype.attr("itemsize")));
        arrival.dense.layout = static_cast<const RowLayout*>(arrival.layout.data());
        const nb::object place = rows.attr("__array_interface__")["data"];
        arrival.dense.rows = reinterpret_cast<const std::byte*>(nb::cast<std::uintptr_t>(place[nb::int_(0)]));
    } else {
        arrival.dense.rows = memory(rows);
    }
    arrival.is_bool = text(arrival.dtype.attr("kind")) == "b";
    arrival.sequences = arrival.dense.num_rows;
    if (!value[1].is_none()) {
        const Ints offsets(value[1], "offsets", {Ints::kInt64}, where);
        check_bounds(where, "offsets", offsets, arrival.dense.num_rows, "rows");
        arrival.dense.offsets = offsets.int64();
        arrival.sequences = static_cast<std::int64_t>(offsets.size()) - 1;
    }
    return arrival;
}

static Arrival examine_sparse(const std::string& where, nb::tuple value) {
    if (value.size() != 4)
        raise<nb::value_error>(
            where + ": expected (indptr, indices, values, offsets) for a sparse stream, got a tuple of " +
            number(value.size()));
    Arrival arrival;
    const nb::object values = checked_ndarray(where, "values", value[2]);
    arrival.dtype = values.attr("dtype");
    arrival.row_shape = nb::make_tuple();
    arrival.item_bytes = nb::cast<std::size_t>(arrival.dtype.attr("itemsize"));
    const bool is_float = text(arrival.dtype.attr("kind")) == "f" &&
                          nb::cast<bool>(arrival.dtype.attr("isnative")) &&
                          (arrival.item_bytes == 4 || arrival.item_bytes == 8);
    if (!is_float || nb::cast<int>(values.attr("ndim")) != 1)
        raise<nb::value_error>(where + ": expected one-dimensional float32 or float64 `values`, got " +
                               describe(values));
    arrival.sparse.values = memory(values);
    arrival.sparse.num_values = nb::cast<std::int64_t>(values.attr("size"));
    const Ints indices(value[1], "indices", {Ints::kInt32}, where);
    if (static_cast<std::int64_t>(indices.size()) != arrival.sparse.num_values)
        raise<nb::value_error>(where + ": expected as many `indices` as `values`, " +
                               number(arrival.sparse.num_values) + ", got " + number(indices.size()));
    arrival.sparse.indices = indices.int32();
    const Ints indptr(value[0], "indptr", {Ints::kInt64}, where);
    check_bounds(where, "indptr", indptr, arrival.sparse.num_values, "values");
    arrival.sparse.indptr = indptr.int64();
    arrival.sparse.num_rows = static_cast<std::int64_t>(indptr.size()) - 1;
    arrival.sequences = arrival.sparse.num_rows;
    if (!value[3].is_none()) {
        const Ints offsets(value[3], "offsets", {Ints::kInt64}, where);
        check_bounds(where, "offsets", offsets, arrival.sparse.num_rows, "rows");
        arrival.sparse.offsets = offsets.int64();
        arrival.sequences = static_cast<std::int64_t>(offsets.size()) - 1;
    }
    return arrival;
}

// Byte strings: as sparse rows of bytes without indices.
static Arrival examine_bytes(const std::string& where, nb::tuple value) {
    if (value.size() != 3 && value.size() != 2)
        raise<nb::value_error>(where + ": expected (bounds, data, offsets) or (spans, data) for a stream of bytes, got "
                               "a tuple of " + number(value.size()));
    Arrival arrival;
    const nb::object data = checked_ndarray(where, "data", value[1]);
    arrival.dtype = data.attr("dtype");
    arrival.row_shape = nb::make_tuple();
    arrival.item_bytes = 1;
    if (text(arrival.dtype.attr("name")) != "uint8" || nb::cast<int>(data.attr("ndim")) != 1)
        raise<nb::value_error>(where + ": expected one-dimensional uint8 `data`, got " + describe(data));
    arrival.sparse.values = memory(data);
    arrival.sparse.num_values = nb::cast<std::int64_t>(data.attr("size"));
    if (value.size() == 2) {
        const Ints spans(value[0], "spans", {Ints::kInt64}, where);
        const std::size_t n = spans.size() / 2, bad = first_bad_span(spans.int64(), n, arrival.sparse.num_values);
        if (spans.size() % 2 != 0 || bad < n)
            raise<nb::value_error>(where + ": expected `spans` as begin and end of each sample within " +
                                   number(arrival.sparse.num_values) + " bytes, got others at sample " + number(bad));
        arrival.sparse.indptr = spans.int64();
        arrival.sparse.spans = true;
        arrival.sequences = arrival.sparse.num_rows = static_cast<std::int64_t>(n);
        return arrival;
    }
    const Ints bounds(value[0], "bounds", {Ints::kInt64}, where);
    check_bounds(where, "bounds", bounds, arrival.sparse.num_values, "bytes");
    arrival.sparse.indptr = bounds.int64();
    arrival.sparse.num_rows = static_cast<std::int64_t>(bounds.size()) - 1;
    arrival.sequences = arrival.sparse.num_rows;
    if (!value[2].is_none()) {
        const Ints offsets(value[2], "offsets", {Ints::kInt64}, where);
        check_bounds(where, "offsets", offsets, arrival.sparse.num_rows, "samples");
        arrival.sparse.offsets = offsets.int64();
        arrival.sequences = static_cast<std::int64_t>(offsets.size()) - 1;
    }
    return arrival;
}

// The table for writing, with a place for `slot`.
Table& Gatherer::with_room(std::int64_t slot) {
    Table& table = writable();
    const auto size = static_cast<std::size_t>(slot) + 1;
    if (size <= table.held.size()) return table;
    for (std::size_t s = 0; s < classes_.size(); ++s) {
        if (is_sparse(s))
            table.sparse[s].resize(size);
        else
            table.dense[s].resize(size);
    }
    table.owners.resize(size);
    table.origins.resize(size);
    table.sealed_by.resize(size, 0);
    table.sequences.resize(size, 0);
    table.held.resize(size, 0);
    return table;
}

static void check_slot(std::int64_t slot) {
    if (slot < 0 || static_cast<std::size_t>(slot) >= kMaxSlots)
        raise<nb::value_error>("expected 0 <= slot < 2**24, got " + number(slot));
}

// Eight bytes of a map as they are now.
static Seal examine_seal(nb::handle array) {
    const nb::object bytes = checked_ndarray("seal", "seal", array);
    if (nb::cast<std::size_t>(bytes.attr("nbytes")) != sizeof(std::uint64_t))
        raise<nb::value_error>("expected a seal of 8 bytes, got " + describe(bytes));
    Seal seal{memory(bytes), 0};
    const void* unreadable = guarded([&] { seal.expected = read_seal(seal.bytes); });
    if (unreadable != nullptr) raise_fault("unreadable", address_of(unreadable));
    return seal;
}

void Gatherer::add(std::int64_t slot, nb::sequence values, nb::sequence seals) {
    check_slot(slot);
    if (nb::len(values) != classes_.size())
        raise<nb::value_error>("slot " + number(slot) + ": expected " + number(classes_.size()) +
                               " streams, got " + number(nb::len(values)));
    const auto where = [&](std::size_t s) { return "stream " + number(s) + " of slot " + number(slot); };
    std::vector<Arrival> arrivals;
    std::vector<nb::object> owners;
    std::vector<Seal> sealed;
    for (const nb::handle seal : seals) {
        sealed.push_back(examine_seal(seal));
        owners.push_back(nb::borrow(seal));
    }
    for (std::size_t s = 0; s < classes_.size(); ++s) {
        const nb::object item = values[s];
        if (!nb::isinstance<nb::tuple>(item))
            raise<nb::type_error>(where(s) + ": expected a tuple, got " + describe(item));
        const nb::tuple value(item);
        arrivals.push_back(!is_sparse(s)         ? examine_dense(where(s), value)
                           : classes_[s] >= 0    ? examine_sparse(where(s), value)
                                                 : examine_bytes(where(s), value));
        const std::string kind = text(arrivals.back().dtype.attr("kind"));
        arrivals.back().is_inexact = std::string_view("biuSUmM").find(kind) == std::string_view::npos;
        for (const nb::handle array : value)
            if (!array.is_none()) owners.push_back(nb::borrow(array));
        if (arrivals.back().layout.is_valid()) owners.push_back(arrivals.back().layout);
    }

    // The examination lets other threads run, so the table is looked at only now, and in one go.
    if (holds(slot))
        raise<nb::value_error>("slot " + number(slot) + " already holds a chunk; remove it first");
    for (std::size_t s = 0; s < classes_.size(); ++s) {
        const Stream& stream = table_->streams[s];
        const Arrival& arrival = arrivals[s];
        if (stream.known && !arrival.dtype.equal(stream.dtype))
            raise<nb::value_error>(where(s) + ": expected dtype " + text(stream.dtype) +
                                   " as in earlier slots, got " + text(arrival.dtype));
        if (stream.known && !arrival.row_shape.equal(stream.row_shape))
            raise<nb::value_error>(where(s) + ": expected rows of shape " + text(stream.row_shape) +
                                   " as in earlier slots, got " + text(arrival.row_shape));
        if (arrival.sequences != arrivals[0].sequences)
            raise<nb::value_error>(where(s) + ": expected " + number(arrivals[0].sequences) +
                                   " sequences as in stream 0, got " + number(arrival.sequences));
    }

    // From here on nothing but memory can fail, and room is made before anything is set. Not even str() may be called,
    // which handles signals.
    Table& table = with_room(slot);
    const auto at = static_cast<std::size_t>(slot);
    table.sealed_by[at] = table.place_of(sealed);
    for (std::size_t s = 0; s < classes_.size(); ++s) {
        Stream& stream = table.streams[s];
        const Arrival& arrival = arrivals[s];
        if (is_sparse(s))
            table.sparse[s][at] = arrival.sparse;
        else
            table.dense[s][at] = arrival.dense;
        stream.ever_ragged |= arrival.dense.offsets != nullptr || arrival.sparse.offsets != nullptr;
        stream.ever_strided |= arrival.dense.layout != nullptr;
        if (stream.known) continue;
        stream.known = true;
        stream.dtype = arrival.dtype;
        stream.bools = bools_ && arrival.is_bool;
        stream.inexact = arrival.is_inexact;
        stream.row_shape = arrival.row_shape;
        stream.item_bytes = arrival.item_bytes;
    }
    table.owners[at] = std::move(owners);
    table.sequences[at] = arrivals[0].sequences;
    table.held[at] = 1;
}

void Gatherer::remove(std::int64_t slot) {
    must_hold(slot);
    Table& table = writable();
    table.held[slot] = 0;
    table.origins[slot].reset();
    --table.seals[table.sealed_by[slot]].slots;
    table.sealed_by[slot] = 0;
    table.sequences[slot] = 0;
    for (auto& sources : table.dense)
        if (!sources.empty()) sources[slot] = DenseSource{};
    for (auto& sources : table.sparse)
        if (!sources.empty()) sources[slot] = SparseSource{};
    // Freeing arrays may run other code, which must find the slot already vacant.
    const std::vector<nb::object> dropped = std::move(table.owners[slot]);
    table.owners[slot].clear();
}

void Gatherer::clear() {
    const std::shared_ptr<Table> dropped = std::move(table_);
    table_ = std::make_shared<Table>(classes_);
}

nb::list Gatherer::slots() const {
    nb::list held;
    for (std::size_t slot = 0; slot < table_->held.size(); ++slot)
        if (table_->held[slot]) held.append(slot);
    return held;
}

std::int64_t Gatherer::sequences(std::int64_t slot) const {
    must_hold(slot);
    return table_->sequences[slot];
}

// ---- gather ---------------------------------------------------------------------------------------------

[[noreturn]] static void refuse_pick(const Table& table, const Picks& picks, std::ptrdiff_t place) {
    const std::size_t slot = picks.slots == nullptr ? 0 : picks.slots[place];
    const std::string where = "place " + number(place) + ": expected ";
    if (slot >= table.held.size() || !table.held[slot])
        raise<nb::index_error>(where + "a slot that holds a chunk, got slot " + number(slot));
    raise<nb::index_error>(where + "an index from 0 to below " + number(table.sequences[slot]) + " in slot " +
                           number(slot) + ", got " + number(picks.index[place]));
}

// (n, *row_shape)
static nb::object shape_of(std::int64_t n, const nb::object& row_shape) {
    const auto axes = static_cast<std::size_t>(PyTuple_Size(row_shape.ptr()));
    nb::object shape = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(axes + 1)));
    if (!shape.is_valid()) throw nb::python_error();
    PyTuple_SetItem(shape.ptr(), 0, nb::int_(n).release().ptr());
    for (std::size_t axis = 0; axis < axes; ++axis) {
        PyObject* size = PyTuple_GetItem(row_shape.ptr(), static_cast<Py_ssize_t>(axis));
        Py_INCREF(size);
        PyTuple_SetItem(shape.ptr(), static_cast<Py_ssize_t>(axis + 1), size);
    }
    return shape;
}

// What a row of a column of some stream is.
struct Rows {
    nb::object shape;  // tuple; empty for a column of numbers
    nb::object dtype;
    std::size_t bytes;
};

static Rows numbers(nb::handle dtype, std::size_t bytes) { return {nb::make_tuple(), nb::borrow(dtype), bytes}; }

// A fresh array (n, *rows.shape).
static nb::object new_rows(std::int64_t n, const Rows& rows) {
    if (PyTuple_Size(rows.shape.ptr()) == 0) return new_array(static_cast<std::size_t>(n), rows.dtype);
    return numpy().empty(shape_of(n, rows.shape), rows.dtype);
}

// A fresh array of so many bytes that begins at a multiple of kAlign.
static nb::object aligned(nb::handle shape, nb::handle dtype, std::size_t bytes) {
    const nb::object whole = new_array(bytes + kAlign - 1, numpy().uint8);
    const auto address = reinterpret_cast<std::uintptr_t>(memory(whole));
    return numpy().ndarray(shape, dtype, whole, (kAlign - address % kAlign) % kAlign);
}

static nb::object aligned_rows(std::int64_t n, const Rows& rows) {
    return aligned(shape_of(n, rows.shape), rows.dtype, static_cast<std::size_t>(n) * rows.bytes);
}

// One array that holds those of many parts, each at a multiple of kAlign.
class Shelf {
public:
    explicit Shelf(Rows rows) : rows_(std::move(rows)) {
        if (rows_.bytes != 0) unit_ = kAlign / std::gcd(rows_.bytes, kAlign);
        // Numbers are sliced. Rows that are not multiples of kAlign leave less between parts if bytes are counted.
        by_bytes_ = unit_ != 1 && PyTuple_Size(rows_.shape.ptr()) != 0;
        if (by_bytes_) unit_ = kAlign;
    }

    void add(std::int64_t count) {
        at_.push_back(end_);
        counts_.push_back(count);
        end_ += static_cast<std::size_t>(count) * (by_bytes_ ? rows_.bytes : 1);
        end_ = (end_ + unit_ - 1) / unit_ * unit_;
    }

    // Once all were added.
    void make() {
        const auto size = static_cast<std::int64_t>(end_);
        array_ = by_bytes_ ? aligned_rows(size, numbers(numpy().uint8, 1)) : aligned_rows(size, rows_);
        memory_ = feedline::bindings::memory(array_);
    }

    std::byte* memory(std::size_t part) const { return memory_ + at_[part] * (by_bytes_ ? 1 : rows_.bytes); }

    // (count, *rows.shape), a view.
    nb::object array(std::size_t part) const {
        if (by_bytes_) return numpy().ndarray(shape_of(counts_[part], rows_.shape), rows_.dtype, array_, at_[part]);
        const nb::object begin = nb::int_(at_[part]);
        const nb::object end = nb::int_(at_[part] + static_cast<std::size_t>(counts_[part]));
        const nb::object slice = nb::steal(PySlice_New(begin.ptr(), end.ptr(), nullptr));
        if (!slice.is_valid()) throw nb::python_error();
        nb::object view = nb::steal(PyObject_GetItem(array_.ptr(), slice.ptr()));
        if (!view.is_valid()) throw nb::python_error();
        return view;
    }

private:
    Rows rows_;
    std::size_t unit_ = 1;  // rows, or bytes
    bool by_bytes_ = false;
    std::vector<std::size_t> at_;
    std::vector<std::int64_t> counts_;
    std::size_t end_ = 0;
    nb::object array_;
    std::byte* memory_ = nullptr;
};

static void run_jobs(const Prepared& prepared, const Picks& picks, std::size_t threads, Outcome& outcome) {
    in_parts(threads, [&](std::size_t k) {
        run_part(prepared.jobs, *prepared.table, picks, picks.count * k / threads, picks.count * (k + 1) / threads,
                 outcome);
    });
}

// The first bad entry of each place of a job, as tuples (place, stream, entry, classes or None, address in the
// source) at the end of `found`; bad entries become 0.
static void list_bad(const Job& job, const Table& table, const Picks& picks, std::size_t stream, nb::list& found) {
    const std::size_t n = picks.count;
    std::size_t told = n;  // the place that was listed last
    const auto tell = [&](std::size_t place, std::int64_t entry, const void* source) {
        if (place == told) return;
        told = place;
        // Of what was brought into memory, the place in its file.
        const std::size_t slot = picks.slots == nullptr ? 0 : picks.slots[place];
        if (table.origins[slot] != nullptr) source = table.origins[slot]->origin(static_cast<const std::byte*>(source));
        nb::object classes = nb::none();  // a bool
        if (job.classes >= 0) classes = nb::int_(job.classes);
        if (job.classes == kText) classes = nb::str("str");
        found.append(nb::make_tuple(place, stream, entry, classes, address_of(source)));
    };
    if (job.classes == kBytes) return;
    if (job.classes == kText) {
        // An invalid text is blanked as a whole: whatever is left of it would be another text.
        const SparseRun* runs = job.runs.get();
        const auto end = static_cast<std::size_t>(runs[n].out_row);
        std::size_t place = 0;
        for (std::size_t row = 0;
             (row += first_bad_text(job.rows, job.indptr[row], job.indptr + row + 1, end - row)) < end; ++row) {
            while (static_cast<std::size_t>(runs[place + 1].out_row) <= row) ++place;
            const auto from = static_cast<std::size_t>(job.indptr[row]);
            const std::size_t size = static_cast<std::size_t>(job.indptr[row + 1]) - from;
            const std::size_t at = from + first_bad_utf8(job.rows + from, size);
            tell(place, std::to_integer<std::int64_t>(job.rows[at]),
                 runs[place].values + (at - static_cast<std::size_t>(runs[place].out_value)));
            std::fill_n(job.rows + from, size, std::byte{0});
        }
        return;
    }
    if (job.is_sparse) {
        const SparseRun* runs = job.runs.get();
        const auto end = static_cast<std::size_t>(runs[n].out_value);
        const auto width = static_cast<std::uint32_t>(job.classes);
        std::size_t place = 0;
        for (std::size_t at = 0; (at = first_bad_index(job.indices, at, end, width)) < end; ++at) {
            while (static_cast<std::size_t>(runs[place + 1].out_value) <= at) ++place;
            tell(place, job.indices[at], runs[place].indices + (at - static_cast<std::size_t>(runs[place].out_value)));
            job.indices[at] = 0;
        }
        return;
    }
    if (!job.bools) return;
    const std::size_t row = job.item_bytes;
    const auto start = [&](std::size_t place) {
        return (job.offsets == nullptr ? place : static_cast<std::size_t>(job.offsets[place])) * row;
    };
    const std::size_t end = start(n);
    std::size_t place = 0;
    for (std::size_t at = 0; (at = first_bad_bool(job.rows, at, end)) < end; ++at) {
        while (start(place + 1) <= at) ++place;
        const DenseSource& dense = job.dense[picks.slots == nullptr ? 0 : picks.slots[place]];
        const std::byte* source = nullptr;
        if (job.offsets != nullptr)
            source = job.from[place] + (at - start(place));
        else if (dense.layout == nullptr)
            source = dense.rows + static_cast<std::size_t>(picks.index[place]) * row + (at - start(place));
        else  // the start of the row will do
            source = dense.rows + static_cast<std::ptrdiff_t>(picks.index[place]) * dense.layout->row_stride;
        tell(place, static_cast<std::int64_t>(job.rows[at]), source);
        job.rows[at] = std::byte{0};
    }
}

// Raises what was found wrong, if anything was.
static void refuse_outcome(const Outcome& outcome, const std::vector<Job>& jobs, const Table& table, const Picks& picks,
                           const nb::list& result) {
    if (outcome.good()) return;
    if (const void* address = outcome.unreadable.load()) raise_fault("unreadable", address_of(address));
    if (const void* address = outcome.broken.load()) raise_fault("cut", address_of(address));
    if (const void* address = outcome.changed.load()) raise_fault("changed", address_of(address));
    nb::list found;
    for (std::size_t s = 0; s < jobs.size(); ++s) list_bad(jobs[s], table, picks, s, found);
    raise_fault("BadEntriesError", result, found);
}

static void check_picks(const Table& table, const Picks& picks) {
    if (!table.streams[0].known)
        throw nb::value_error("expected at least one chunk before gather, got none; call add() first");
    const std::ptrdiff_t bad = first_bad_pick(picks, table.sequences.data(), table.sequences.size());
    if (bad >= 0) refuse_pick(table, picks, bad);
}

static bool is_ragged(const Table& table, std::size_t s, const Picks& picks) {
    const Stream& stream = table.streams[s];
    if (!stream.ever_ragged || picks.count == 0) return stream.ever_ragged;
    return stream.sparse ? any_ragged(picks, table.sparse[s].data()) : any_ragged(picks, table.dense[s].data());
}

// What one stream of some picks is copied from, and how much that is.
struct Planned {
    Job job;
    std::int64_t rows = 0;
    std::int64_t values = 0;  // sparse only
};

// offsets: of the output, filled here; null where every sequence has one row.
static Planned plan(const Table& table, std::size_t s, const Picks& picks, std::int64_t* offsets) {
    const Stream& stream = table.streams[s];
    const std::size_t n = picks.count;
    Planned planned;
    Job& job = planned.job;
    job.is_sparse = stream.sparse;
    job.bools = stream.bools;
    job.classes = stream.classes;
    job.item_bytes = stream.item_bytes;
    job.offsets = offsets;
    if (stream.sparse) {
        job.sparse = table.sparse[s].data();
    } else {
        job.dense = table.dense[s].data();
        job.is_strided = stream.ever_strided;
    }
    const auto refuse_source = [&](std::ptrdiff_t fault) {
        const std::size_t slot = picks.slots == nullptr ? 0 : picks.slots[fault];
        const std::int64_t index = picks.index[fault];
        const std::int64_t* bounds = stream.sparse ? job.sparse[slot].offsets : job.dense[slot].offsets;
        if (bounds == nullptr && stream.sparse)
            bounds = job.sparse[slot].indptr + (job.sparse[slot].spans ? index : 0);
        // Without bounds it is the last row that passes the total.
        raise_fault("changed", bounds != nullptr ? address_of(bounds + index) : address_of(job.dense[slot].rows));
    };
    if (stream.sparse) {
        job.runs = std::unique_ptr<SparseRun[]>(new SparseRun[n + 1]);
        SparseTotals totals;
        const void* unreadable = guarded([&] {
            totals = plan_sparse(picks, job.sparse, stream.item_bytes, job.runs.get(), job.offsets);
        });
        if (unreadable != nullptr) raise_fault("unreadable", address_of(unreadable));
        if (totals.fault >= 0) refuse_source(totals.fault);
        planned.rows = totals.rows;
        planned.values = totals.values;
    } else if (offsets != nullptr) {
        job.from = std::unique_ptr<const std::byte*[]>(new const std::byte*[n]);
        std::ptrdiff_t fault = -1;
        const void* unreadable = guarded([&] {
            fault = plan_ragged(picks, job.dense, stream.item_bytes, job.from.get(), job.offsets);
        });
        if (unreadable != nullptr) raise_fault("unreadable", address_of(unreadable));
        if (fault >= 0) refuse_source(fault);
        planned.rows = job.offsets[n];
    } else {
        planned.rows = static_cast<std::int64_t>(n);
    }
    return planned;
}

static Rows rows_of(const Stream& stream) { return {stream.row_shape, stream.dtype, stream.item_bytes}; }

static Prepared prepare(std::shared_ptr<const Table> from, const Picks& picks) {
    Prepared prepared;
    prepared.table = std::move(from);
    const std::shared_ptr<const Table>& table = prepared.table;
    check_picks(*table, picks);

    prepared.jobs.reserve(table->streams.size());
    for (std::size_t s = 0; s < table->streams.size(); ++s) {
        const Stream& stream = table->streams[s];
        nb::object offsets = nb::none();
        if (is_ragged(*table, s, picks)) offsets = new_array(picks.count + 1, numpy().int64);
        Planned planned = plan(*table, s, picks, offsets.is_none() ? nullptr : data_of<std::int64_t>(offsets));
        Job& job = planned.job;
        const std::int64_t count = stream.sparse ? planned.values : planned.rows;
        const nb::object out = stream.inexact ? aligned_rows(count, rows_of(stream)) : new_rows(count, rows_of(stream));
        job.rows = memory(out);
        prepared.bytes += static_cast<std::size_t>(count) * stream.item_bytes;
        if (!stream.sparse) {
            prepared.result.append(nb::make_tuple(out, offsets));
        } else {
            const nb::object indptr = new_array(static_cast<std::size_t>(planned.rows) + 1, numpy().int64);
            job.indptr = data_of<std::int64_t>(indptr);
            job.indptr[0] = 0;  // also when there is no sequence to copy
            if (stream.classes >= 0) {
                const nb::object columns = new_array(static_cast<std::size_t>(count), numpy().int32);
                job.indices = data_of<std::int32_t>(columns);
                prepared.bytes += static_cast<std::size_t>(count) * sizeof(std::int32_t);
                prepared.result.append(nb::make_tuple(indptr, columns, out, offsets));
            } else {
                prepared.result.append(nb::make_tuple(indptr, out, offsets));
            }
        }
        prepared.jobs.push_back(std::move(job));
    }
    return prepared;
}

static nb::list gather_now(const std::shared_ptr<const Table>& table, const Picks& picks, std::size_t threads) {
    const Prepared prepared = prepare(table, picks);
    Outcome outcome;
    if (prepared.bytes <= kKeepGil) {
        run_jobs(prepared, picks, 1, outcome);
    } else {
        const Unlocked unlocked;
        const bool large = prepared.bytes > kThreadedBytes;
        run_jobs(prepared, picks, large ? std::min(threads, picks.count) : 1, outcome);
    }
    refuse_outcome(outcome, prepared.jobs, *prepared.table, picks, prepared.result);
    return prepared.result;
}

nb::list Gatherer::gather(nb::handle slots, nb::handle index, std::int64_t threads) {
    if (threads < 1) raise<nb::value_error>("expected threads >= 1, got " + number(threads));
    const PickArrays arrays(slots, index);
    return gather_now(table_, arrays.picks, static_cast<std::size_t>(threads));
}

// ---- many gathers at once -------------------------------------------------------------------------------

namespace {

// One of them.
struct Part {
    Picks picks;
    std::vector<Job> jobs;
    nb::list result;
};

}  // namespace

// Plans a stream of all parts, and makes its arrays. Returns how many bytes they have.
static std::size_t prepare_parts(const Table& table, std::size_t s, std::vector<Part>& parts) {
    const Stream& stream = table.streams[s];
    const std::size_t m = parts.size();
    std::vector<char> ragged(m);
    Shelf offsets(numbers(numpy().int64, sizeof(std::int64_t)));
    for (std::size_t p = 0; p < m; ++p) {
        ragged[p] = is_ragged(table, s, parts[p].picks);
        offsets.add(ragged[p] ? static_cast<std::int64_t>(parts[p].picks.count) + 1 : 0);
    }
    if (stream.ever_ragged) offsets.make();
    std::vector<Planned> planned;
    planned.reserve(m);
    Shelf rows(rows_of(stream)), indptr(numbers(numpy().int64, sizeof(std::int64_t)));
    Shelf indices(numbers(numpy().int32, sizeof(std::int32_t)));
    std::size_t bytes = 0;
    for (std::size_t p = 0; p < m; ++p) {
        auto* const bounds = ragged[p] ? reinterpret_cast<std::int64_t*>(offsets.memory(p)) : nullptr;
        planned.push_back(plan(table, s, parts[p].picks, bounds));
        const std::int64_t count = stream.sparse ? planned[p].values : planned[p].rows;
        rows.add(count);
        bytes += static_cast<std::size_t>(count) * stream.item_bytes;
        if (ragged[p]) bytes += (parts[p].picks.count + 1) * sizeof(std::int64_t);
        if (!stream.sparse) continue;
        bytes += static_cast<std::size_t>(planned[p].rows + 1) * sizeof(std::int64_t);
        if (stream.classes >= 0) bytes += static_cast<std::size_t>(count) * sizeof(std::int32_t);
        indptr.add(planned[p].rows + 1);
        indices.add(count);
    }
    rows.make();
    if (stream.sparse) indptr.make();
    if (stream.classes >= 0) indices.make();
    for (std::size_t p = 0; p < m; ++p) {
        Job& job = planned[p].job;
        job.rows = rows.memory(p);
        const nb::object bounds = ragged[p] ? offsets.array(p) : nb::none();
        if (!stream.sparse) {
            parts[p].result.append(nb::make_tuple(rows.array(p), bounds));
        } else {
            job.indptr = reinterpret_cast<std::int64_t*>(indptr.memory(p));
            job.indptr[0] = 0;
            if (stream.classes >= 0) {
                job.indices = reinterpret_cast<std::int32_t*>(indices.memory(p));
                parts[p].result.append(nb::make_tuple(indptr.array(p), indices.array(p), rows.array(p), bounds));
            } else {
                parts[p].result.append(nb::make_tuple(indptr.array(p), rows.array(p), bounds));
            }
        }
        parts[p].jobs.push_back(std::move(job));
    }
    return bytes;
}

nb::object Gatherer::gather_parts(nb::handle slots, nb::handle index, nb::handle ends) {
    const PickArrays arrays(slots, index);
    const Picks& picks = arrays.picks;
    const Ints bounds(ends, "ends", {Ints::kInt64});
    const std::int64_t* const end = bounds.int64();
    if (bounds.size() < 1 || first_fault(end, bounds.size() - 1, static_cast<std::int64_t>(picks.count)) >= 0)
        raise<nb::value_error>("expected `ends` to begin at 0, never fall, and end at " + number(picks.count));
    const std::shared_ptr<const Table> table = table_;
    check_picks(*table, picks);
    std::vector<Part> parts(bounds.size() - 1);
    for (std::size_t p = 0; p < parts.size(); ++p) {
        const std::int64_t at = end[p];
        parts[p].picks = {picks.slots == nullptr ? nullptr : picks.slots + at, picks.index + at,
                          static_cast<std::size_t>(end[p + 1] - at)};
    }
    std::size_t bytes = 0;
    for (std::size_t s = 0; s < table->streams.size(); ++s) bytes += prepare_parts(*table, s, parts);
    Outcome outcome;
    const auto copy = [&] {
        for (const Part& part : parts) run_part(part.jobs, *table, part.picks, 0, part.picks.count, outcome);
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

Copy* Gatherer::start(nb::handle slots, nb::handle index) {
    auto work = std::make_shared<Work>(PickArrays(slots, index).picks);
    Prepared prepared = prepare(table_, work->picks);
    return new Copy(std::move(prepared), std::move(work));
}

Copy::Copy(Prepared prepared, std::shared_ptr<Work> work)
    : result_(std::move(prepared.result)), table_(std::move(prepared.table)), work_(std::move(work)) {
    work_->jobs = std::move(prepared.jobs);
    const std::size_t n = work_->picks.count;
    const std::size_t parts = std::min(n, prepared.bytes / kPartBytes + 1);
    task_ = std::make_shared<Task>(parts, [work = work_, table = table_.get(), parts, n](std::size_t k) {
        run_part(work->jobs, *table, work->picks, n * k / parts, n * (k + 1) / parts, work->outcome);
    });
    Background::of_this_process().start(task_);
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
    if (table_ != nullptr) refuse_outcome(work_->outcome, work_->jobs, *table_, work_->picks, result_);
    table_.reset();
    return result_;
}

// ---- runs brought into memory first ---------------------------------------------------------------------

static std::vector<StageWork::Stream> stage_streams(const Table& table) {
    std::vector<StageWork::Stream> streams;
    for (std::size_t s = 0; s < table.streams.size(); ++s) {
        streams.push_back({table.streams[s].sparse, table.streams[s].item_bytes, table.dense[s].data(),
                           table.sparse[s].data()});
        streams.back().has_indices = table.streams[s].classes >= 0;
    }
    return streams;
}

static nb::object checked_fetcher(nb::handle fetcher) {
    if (!nb::isinstance<Disk>(fetcher)) raise<nb::type_error>("expected a Fetcher, got " + describe(fetcher));
    return nb::borrow(fetcher);
}

namespace {

// The arguments that name runs, looked at while the GIL is held.
struct RunArrays {
    RunArrays(const Table& table, nb::handle slots, nb::handle index, nb::handle given_counts) : first(slots, index) {
        check_picks(table, first.picks);
        const Picks& picks = first.picks;
        if (!given_counts.is_none()) {
            counts = std::make_unique<Ints>(given_counts, "counts", std::initializer_list<Ints::Type>{Ints::kInt64});
            if (counts->size() != picks.count)
                raise<nb::value_error>("expected `index` and `counts` of equal length, got " + number(picks.count) +
                                       " and " + number(counts->size()));
        }
        for (std::size_t i = 0; counts != nullptr && i < picks.count; ++i) {
            const std::int64_t count = counts->int64()[i], held = table.sequences[slot(i)];
            if (count < 1 || count > held - picks.index[i])
                raise<nb::index_error>("place " + number(i) + ": expected a run inside the " + number(held) +
                                       " sequences of slot " + number(slot(i)) + ", got " + number(count) + " from " +
                                       number(picks.index[i]));
        }
    }
    std::uint32_t slot(std::size_t i) const { return first.picks.slots == nullptr ? 0 : first.picks.slots[i]; }
    std::int64_t run(std::size_t i) const { return counts == nullptr ? 1 : counts->int64()[i]; }

    PickArrays first;
    std::unique_ptr<Ints> counts;
};

}  // namespace

Staged* Gatherer::stage(nb::handle fetcher, nb::handle slots, nb::handle index, nb::handle counts, nb::sequence keep) {
    nb::object disk = checked_fetcher(fetcher);
    const RunArrays runs(*table_, slots, index, counts);
    const std::size_t n = runs.first.picks.count;
    if (nb::len(keep) != classes_.size())
        raise<nb::value_error>("expected to know for " + number(classes_.size()) + " streams what to keep, got " +
                               number(nb::len(keep)));
    // Only the slots concerned: the others may come and go.
    auto base = std::make_shared<Table>(classes_);
    base->streams = table_->streams;
    std::unordered_map<std::uint32_t, std::uint32_t> places;
    std::vector<std::uint32_t> own(n);
    for (std::size_t i = 0; i < n; ++i) {
        const std::uint32_t slot = runs.slot(i);
        const auto [found, fresh] = places.emplace(slot, static_cast<std::uint32_t>(places.size()));
        own[i] = found->second;
        if (!fresh) continue;
        for (std::size_t s = 0; s < classes_.size(); ++s) {
            if (is_sparse(s) && table_->sparse[s][slot].spans)
                raise<nb::value_error>("stream " + number(s) + ": byte strings with gaps cannot be staged");
            if (is_sparse(s))
                base->sparse[s].push_back(table_->sparse[s][slot]);
            else
                base->dense[s].push_back(table_->dense[s][slot]);
        }
        base->owners.push_back(table_->owners[slot]);
        base->sealed_by.push_back(base->place_of(table_->seals[table_->sealed_by[slot]].seals));
    }
    std::vector<StageWork::Stream> streams = stage_streams(*base);
    for (std::size_t s = 0; s < streams.size(); ++s) {
        const auto bits = nb::cast<unsigned>(nb::object(keep[s]));
        streams[s].keep_rows = (bits & 1) != 0;
        streams[s].keep_bounds = (bits & 2) != 0;
    }
    const Runs wanted{own.data(), runs.first.picks.index, runs.counts == nullptr ? nullptr : runs.counts->int64(), n};
    const Disk& from = *nb::inst_ptr<Disk>(disk);
    auto work = std::make_shared<StageWork>(std::move(streams), wanted, from.mapped, from.pool);
    return new Staged(std::move(base), std::move(own), std::move(disk), std::move(work));
}

std::size_t Gatherer::lacking(nb::handle fetcher, nb::handle slots, nb::handle index, nb::handle counts,
                              std::int64_t most, std::int64_t pages) {
    const nb::object disk = checked_fetcher(fetcher);
    const RunArrays runs(*table_, slots, index, counts);
    if (most < 0 || pages < 1) raise<nb::value_error>("expected most >= 0 and pages >= 1");
    const std::size_t n = runs.first.picks.count, looked = std::min(n, static_cast<std::size_t>(most));
    const std::vector<StageWork::Stream> streams = stage_streams(*table_);
    std::size_t lacking = 0;
    for (std::size_t k = 0; k < looked; ++k) {
        const std::size_t i = (2 * k + 1) * n / (2 * looked);  // in the middle of equal parts
        lacking += lacks_pages(streams, runs.slot(i), runs.first.picks.index[i], runs.run(i),
                               *nb::inst_ptr<Disk>(disk)->mapped, static_cast<std::size_t>(pages));
    }
    return lacking;
}

void Gatherer::adopt(std::int64_t slot, nb::handle staged, std::int64_t pick) {
    check_slot(slot);
    if (!nb::isinstance<Staged>(staged)) raise<nb::type_error>("expected a Staged, got " + describe(staged));
    const Table& from = nb::inst_ptr<Staged>(staged)->outcome();
    if (pick < 0 || static_cast<std::size_t>(pick) >= from.sequences.size() || from.sequences[pick] == 0)
        raise<nb::index_error>("expected a run that could be read, got number " + number(pick));
    if (holds(slot))
        raise<nb::value_error>("slot " + number(slot) + " already holds a chunk; remove it first");
    Table& table = with_room(slot);
    const auto at = static_cast<std::size_t>(slot), k = static_cast<std::size_t>(pick);
    for (std::size_t s = 0; s < classes_.size(); ++s) {
        if (is_sparse(s))
            table.sparse[s][at] = from.sparse[s][k];
        else
            table.dense[s][at] = from.dense[s][k];
    }
    table.owners[at].assign(1, nb::borrow(staged));
    table.origins[at] = from.origins[k];
    table.sealed_by[at] = table.place_of(from.seals[from.sealed_by[k]].seals);
    table.sequences[at] = from.sequences[k];
    table.held[at] = 1;
}

Staged::Staged(std::shared_ptr<const Table> base, std::vector<std::uint32_t> slots, nb::object fetcher,
               std::shared_ptr<StageWork> work)
    : base_(std::move(base)), slots_(std::move(slots)), fetcher_(std::move(fetcher)), work_(std::move(work)) {
    disk().fetcher.start(work_);
}

const Table& Staged::outcome() {
    if (outcome_ != nullptr) return *outcome_;
    if (work_->of_a_parent() && !work_->done()) {
        // The threads that would have read stayed in the parent.
        work_ = work_->again();
        disk().fetcher.start(work_);
    }
    disk().wait(*work_);
    if (outcome_ != nullptr) return *outcome_;  // another thread was here first
    disk().disk_bytes += work_->disk_bytes();
    auto outcome = std::make_shared<Table>(std::vector<std::int64_t>());
    outcome->streams = base_->streams;
    // What was left in its file may still be cut there; what is in memory is safe.
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        const std::uint32_t place = work_->in_place(i) ? base_->sealed_by[slots_[i]] : 0;
        outcome->sealed_by.push_back(outcome->place_of(base_->seals[place].seals));
    }
    outcome->held.assign(work_->picks(), 1);
    outcome->origins.assign(work_->picks(), work_);
    for (std::size_t i = 0; i < work_->picks(); ++i) outcome->sequences.push_back(work_->sequences(i));
    for (const StageWork::Fault& fault : work_->faults()) outcome->sequences[fault.pick] = 0;
    for (std::size_t s = 0; s < outcome->streams.size(); ++s) {
        outcome->dense.push_back(work_->dense(s));
        outcome->sparse.push_back(work_->sparse(s));
    }
    outcome_ = std::move(outcome);
    return *outcome_;
}

nb::list Staged::faults() {
    outcome();
    nb::list found;
    for (const StageWork::Fault& fault : work_->faults()) {
        const std::string path = fault.error == 0 ? std::string() : work_->files()[fault.file]->path();
        found.append(nb::make_tuple(fault.pick, fault.stream, fault.error, path, fault.at));
    }
    return found;
}

nb::tuple Staged::found() {
    outcome();
    return nb::make_tuple(work_->asked(), work_->missing(), work_->disk_bytes());
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
    const Table& table = outcome();
    std::vector<std::uint32_t> slots;
    if (which.is_none()) {
        slots.resize(work_->picks());
        std::iota(slots.begin(), slots.end(), 0u);
    } else {
        const Ints chosen(which, "which", {Ints::kInt64});
        for (std::size_t i = 0; i < chosen.size(); ++i) {
            if (chosen.int64()[i] < 0 || static_cast<std::size_t>(chosen.int64()[i]) >= work_->picks())
                raise<nb::index_error>("place " + number(i) + ": expected a run from 0 to below " +
                                       number(work_->picks()) + ", got " + number(chosen.int64()[i]));
            slots.push_back(static_cast<std::uint32_t>(chosen.int64()[i]));
        }
    }
    for (std::size_t i = 0; i < slots.size(); ++i)
        if (table.sequences[slots[i]] == 0)
            raise<nb::value_error>("place " + number(i) + ": expected a run that could be read, got one of faults()");
    const std::vector<std::int64_t> index(slots.size(), 0);
    return gather_now(outcome_, {slots.data(), index.data(), slots.size()}, 1);
}

// ---- pad ------------------------------------------------------------------------------------------------

static nb::tuple py_pad(nb::handle rows, nb::handle offsets, nb::handle fill, std::int64_t length) {
    const nb::object packed = checked_ndarray("pad", "rows", rows);
    const nb::object filler = checked_ndarray("pad", "fill", fill);
    const nb::tuple shape(packed.attr("shape"));
    const nb::object dtype = packed.attr("dtype");
    if (shape.size() == 0)
        raise<nb::value_error>("pad: expected `rows` to have at least one axis, got " + describe(packed));
    if (!nb::object(filler.attr("dtype")).equal(dtype) || nb::cast<std::int64_t>(filler.attr("size")) != 1)
        raise<nb::value_error>("pad: expected `fill` to be one " + text(dtype) + " value in an array, got " +
                               describe(filler));
    const Ints bounds(offsets, "offsets", {Ints::kInt64}, "pad");
    check_bounds("pad", "offsets", bounds, nb::cast<std::int64_t>(shape[0]), "rows");
    const std::size_t n = bounds.size() - 1;
    std::int64_t longest = 0;
    for (std::size_t i = 0; i < n; ++i)
        longest = std::max(longest, bounds.int64()[i + 1] - bounds.int64()[i]);
    if (length < -1 || (length >= 0 && length < longest))
        raise<nb::value_error>("pad: expected a length of at least the longest sequence, " + number(longest) +
                               ", or -1 for that, got " + number(length));
    if (length < 0) length = longest;

    nb::list padded_shape;
    padded_shape.append(n);
    padded_shape.append(length);
    const auto element_bytes = nb::cast<std::size_t>(dtype.attr("itemsize"));
    std::size_t row_bytes = element_bytes;
    for (std::size_t axis = 1; axis < shape.size(); ++axis) {
        padded_shape.append(shape[axis]);
        row_bytes *= nb::cast<std::size_t>(shape[axis]);
    }
    std::size_t bytes;
    if (__builtin_mul_overflow(n, static_cast<std::size_t>(length), &bytes) ||
        __builtin_mul_overflow(bytes, row_bytes, &bytes) || bytes > PTRDIFF_MAX - kAlign)
        raise<nb::value_error>("pad: expected a length whose padded sequences fit into memory, got " + number(length));
    nb::object out = aligned(nb::tuple(padded_shape), dtype, bytes);
    nb::object mask = numpy().empty(nb::make_tuple(n, length), numpy().boolean);
    const std::byte* from = memory(packed);
    const std::byte* element = memory(filler);
    std::byte* to = memory(out);
    bool* real = data_of<bool>(mask);
    {
        const Unlocked unlocked;
        pad(from, bounds.int64(), n, row_bytes, element, element_bytes, static_cast<std::size_t>(length), to,
            real);
    }
    return nb::make_tuple(out, mask);
}

// ---- registration ---------------------------------------------------------------------------------------

static int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    return nb::inst_ptr<Gatherer>(self)->traverse(visit, arg);
}

static int drop(PyObject* self) {
    nb::inst_ptr<Gatherer>(self)->clear();
    return 0;
}

// Of one stream, as the constructor takes it.
static std::int64_t classes_of(nb::handle number) {
    if (number.is_none()) return kDense;
    std::int64_t classes = -1;
    if (nb::isinstance<nb::str>(number)) {
        const std::string kind = text(number);
        if (kind == "bytes") return kBytes;
        if (kind == "str") return kText;
    }
    if (PyBool_Check(number.ptr()) || !nb::try_cast(number, classes))
        raise<nb::type_error>("expected a number of classes, None for a dense stream, 'bytes' or 'str', got " +
                              text(nb::repr(number)));
    if (classes < 0) raise<nb::value_error>("expected at least 0 classes, got " + bindings::number(classes));
    return std::min(classes, std::int64_t{1} << 31);  // an int32 can name no more
}

static std::int64_t bounds_end(nb::handle array, const std::string& name) {
    const Ints bounds(array, name.c_str(), {Ints::kInt64}, "bounds_end");
    if (bounds.size() == 0) raise<nb::value_error>("expected " + name + " of at least one entry, got none");
    std::int64_t end = 0;
    const void* unreadable = guarded([&] { end = bounds.int64()[bounds.size() - 1]; });
    if (unreadable != nullptr) raise_fault("unreadable", address_of(unreadable));
    check_bounds("", name.c_str(), bounds, end, "rows");
    return end;
}

static std::int64_t py_first_uneven(nb::handle offsets, nb::handle lengths) {
    const Ints bounds(offsets, "offsets", {Ints::kInt64}, "first_uneven");
    const Ints wanted(lengths, "lengths", {Ints::kInt32}, "first_uneven");
    if (bounds.size() != wanted.size() + 1)
        raise<nb::value_error>("expected one more offset than lengths, got " + number(bounds.size()) + " and " +
                               number(wanted.size()));
    std::ptrdiff_t found = -1;
    const void* unreadable;
    {
        const Unlocked unlocked;
        unreadable = guarded([&] { found = first_uneven(bounds.int64(), wanted.int32(), wanted.size()); });
    }
    if (unreadable != nullptr) raise_fault("unreadable", address_of(unreadable));
    return found;
}

static std::int64_t py_first_bad_index(nb::handle array, nb::handle number) {
    const Ints indices(array, "indices", {Ints::kInt32}, "first_bad_index");
    const std::int64_t classes = classes_of(number);
    if (classes < 0) raise<nb::type_error>("expected a number of classes, got " + text(nb::repr(number)));
    std::size_t found = 0;
    const void* unreadable;
    {
        const Unlocked unlocked;
        unreadable = guarded([&] {
            found = first_bad_index(indices.int32(), 0, indices.size(), static_cast<std::uint32_t>(classes));
        });
    }
    if (unreadable != nullptr) raise_fault("unreadable", address_of(unreadable));
    return found == indices.size() ? -1 : static_cast<std::int64_t>(found);
}

static std::int64_t py_first_bad_text(nb::handle data, nb::handle bounds) {
    const nb::object bytes = checked_ndarray("first_bad_text", "data", data);
    if (text(bytes.attr("dtype").attr("name")) != "uint8" || nb::cast<int>(bytes.attr("ndim")) != 1)
        raise<nb::value_error>("expected one-dimensional uint8 `data`, got " + describe(bytes));
    const Ints ends(bounds, "bounds", {Ints::kInt64}, "first_bad_text");
    check_bounds("first_bad_text", "bounds", ends, nb::cast<std::int64_t>(bytes.attr("size")), "bytes");
    const std::byte* from = memory(bytes);
    const std::size_t n = ends.size() - 1;
    std::size_t found = n;
    const void* unreadable;
    {
        const Unlocked unlocked;
        // The bounds were checked: nobody else may write to them meanwhile.
        unreadable = guarded([&] { found = first_bad_text(from, 0, ends.int64() + 1, n); });
    }
    if (unreadable != nullptr) raise_fault("unreadable", address_of(unreadable));
    return found == n ? -1 : static_cast<std::int64_t>(found);
}

static nb::object copied(nb::handle array) {
    // As one row, whatever its strides.
    const nb::object from = nb::isinstance(array, numpy().ndarray)
                                ? nb::object(array.attr("__getitem__")(nb::none()))
                                : nb::borrow(array);
    const Arrival whole = examine_dense("copied", nb::make_tuple(from, nb::none()));
    const nb::object out = numpy().empty(array.attr("shape"), array.attr("dtype"));
    std::byte* to = memory(out);
    const void* unreadable;
    {
        const Unlocked unlocked;
        const std::int64_t first = 0;
        const Picks one{nullptr, &first, 1};
        unreadable = guarded([&] {
            if (whole.dense.layout != nullptr)
                copy_strided_rows(one, &whole.dense, whole.item_bytes, to, 0, 1);
            else
                copy_rows(one, &whole.dense, whole.item_bytes, to, 0, 1);
        });
    }
    if (unreadable != nullptr) raise_fault("unreadable", address_of(unreadable));
    return out;
}

void bind_gather(nb::module_& m) {
    nb::class_<Copy>(m, "Copy",
                     "A gather in progress, made by Gatherer.start(). Safe to drop before its end: the rest is then\n"
                     "not copied.")
        .def("result", &Copy::result,
             "Return what gather() would have returned; every call returns the same arrays. Copies whatever has\n"
             "not been copied yet and waits for the rest. Releases the GIL; Ctrl-C interrupts the wait, after\n"
             "which this may be called again.")
        .def_prop_ro("done", &Copy::done, "Whether result() would return at once.");
    nb::class_<Staged>(m, "Staged",
                       "Runs of sequences that are being read into memory, made by Gatherer.stage(). Its methods\n"
                       "wait for the reads, without the GIL; Ctrl-C interrupts the wait. Safe to drop before its\n"
                       "end.")
        .def("faults", &Staged::faults,
             "Return the runs that could not be read: tuples (run, stream, errno, path, offset of the first byte\n"
             "that could not be read). errno is -1 if the file ended too early, and 0 if offsets or bounds of rows\n"
             "are impossible.")
        .def("gather", &Staged::gather, "which"_a.none() = nb::none(),
             "Return the first sequence of each run in `which` (int64[n]; None: all runs), in that order, as\n"
             "Gatherer.gather() does. ValueError for a run that could not be read.")
        .def("found", &Staged::found,
             "Return (pieces looked up in files, number of them that the page cache lacked, bytes read for those).")
        .def("forget", &Staged::forget,
             "Evict from the page cache what was read through it for other processes (from files added with\n"
             "`share`).")
        .def_prop_ro("memory", &Staged::memory, "Bytes of memory that hold what was read.")
        .def_prop_ro("done", &Staged::done, "Whether all reads have ended.");
    static PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                                  {Py_tp_clear, reinterpret_cast<void*>(drop)},
                                  {0, nullptr}};
    nb::class_<Gatherer>(
        m, "Gatherer", nb::type_slots(slots),
        "Resident chunks by slot, and one-call copies of chosen sequences out of them.\n\n"
        "classes: for each stream None if it is dense, how many classes its sparse indices may name, 'bytes' for byte\n"
        "strings, or 'str' for those that are checked to be UTF-8.\n"
        "bools: look whether bytes of bool streams are 0 or 1, too. Holds references to the arrays added,\n"
        "copies nothing until gather(). Arrays may be mapped from files: one that was cut, or whose disk fails, is\n"
        "a DataError, here and in gather(). (Other code that reads such an array is killed.)")
        .def(
            "__init__",
            [](Gatherer* self, nb::sequence classes, bool bools) {
                std::vector<std::int64_t> all;
                for (const nb::handle number : classes) all.push_back(classes_of(number));
                new (self) Gatherer(all, bools);
            },
            "classes"_a, "bools"_a = false)
        .def("add", &Gatherer::add, "slot"_a, "streams"_a, "seals"_a = nb::tuple(),
             "Hold a chunk in a vacant slot (0 <= slot < 2**24).\n\n"
             "streams, one tuple each: dense (rows, offsets) with rows (N, *shape) of any dtype of\n"
             "fixed size; sparse (indptr int64[N + 1], indices int32[nnz], values float32|float64[nnz],\n"
             "offsets); bytes (bounds int64[N + 1], data uint8[n], offsets), or (spans int64[2 * N], data), begin and\n"
             "end of each, one a sequence. offsets is int64[sequences + 1], or None for one row a sequence. All arrays\n"
             "C-contiguous, but for rows without offsets, which may be any view; read-only allowed.\n"
             "Offsets and indptr are checked here, entries when they are copied.\n"
             "seals: arrays of 8 bytes each, at the end of every file that the others are mapped from: they are\n"
             "looked at again after each copy, as a file that is cut in the middle of a page reads as zeros to its end.\n"
             "ValueError or TypeError names the stream; then nothing was changed.")
        .def("remove", &Gatherer::remove, "slot"_a,
             "Remove a slot's chunk. A gather in progress in another thread keeps it until it is done. IndexError\n"
             "if the slot is vacant.")
        .def("clear", &Gatherer::clear, "Remove all chunks, and forget the dtypes and shapes that they fixed.")
        .def_prop_ro("slots", &Gatherer::slots, "Occupied slots, ascending.")
        .def("sequences", &Gatherer::sequences, "slot"_a,
             "Return the number of sequences in a slot's chunk. IndexError if the slot is vacant.")
        .def("gather", &Gatherer::gather, "slots"_a.none(), "index"_a.none(), "threads"_a = 1,
             "Copy sequence index[i] (int64[n]) of slot slots[i] (uint32[n]; None: slot 0) to place i,\n"
             "all streams.\n\n"
             "Returns fresh arrays, a tuple for each stream: dense (rows, offsets), sparse (indptr,\n"
             "indices, values, offsets), bytes (bounds, data, offsets); offsets is None where every chunk involved\n"
             "has one row a sequence. Floating-point numbers begin at a multiple of 64 bytes. Copies above 1 MiB use\n"
             "up to `threads` threads; above 16 KiB they release the GIL. IndexError for a bad slot or index, before\n"
             "anything is copied. DataError where a file was cut or changed; BadEntriesError (feedline.data.faults),\n"
             "which holds the arrays, for indices out of range and text that is not UTF-8.")
        .def("gather_parts", &Gatherer::gather_parts, "slots"_a.none(), "index"_a.none(), "ends"_a,
             "Gather the places ends[i]:ends[i + 1] (ends: int64[m + 1]), for each i, as gather() does.\n\n"
             "Returns a list of what gather() returns, and the bytes of all arrays; None if it would raise an error\n"
             "about what was copied. The arrays are views of one array a column of a stream; each begins at a multiple\n"
             "of 64 bytes. ValueError for ends that do not divide the places; IndexError, DataError as in gather().")
        .def("start", &Gatherer::start, "slots"_a.none(), "index"_a.none(),
             "Begin a gather and return a Copy at once.\n\n"
             "Sizes are computed and arrays allocated here, with gather()'s errors; one thread of the process,\n"
             "which never needs the GIL, fills the arrays. Meanwhile slots may be added and removed, and both\n"
             "arguments may be overwritten.")
        .def("stage", &Gatherer::stage, "fetcher"_a, "slots"_a.none(), "index"_a.none(), "counts"_a.none(), "keep"_a,
             "Begin to read runs into memory and return a Staged at once. Run i: counts[i] (int64[n]; None: 1)\n"
             "sequences from index[i] (int64[n]) of slot slots[i] (uint32[n]; None: slot 0).\n\n"
             "What lies in files of the fetcher and is not in the page cache is read by the fetcher's threads,\n"
             "many ranges at a time; everything else stays where it is. Meanwhile slots may be added and removed,\n"
             "and all arguments may be overwritten.\n\n"
             "keep: for each stream, what the page cache is to keep because it is small: 1 rows, 2 offsets and\n"
             "bounds, 3 both, 0 nothing. IndexError for a bad slot or run.")
        .def("adopt", &Gatherer::adopt, "slot"_a, "staged"_a, "run"_a,
             "Hold a run of a Staged in a vacant slot, as a chunk of its sequences. Waits for the run. IndexError\n"
             "if it could not be read.")
        .def("lacking", &Gatherer::lacking, "fetcher"_a, "slots"_a.none(), "index"_a.none(), "counts"_a.none(),
             "most"_a, "pages"_a,
             "Count the runs of which the page cache lacks a page, among at most `most`, evenly spaced; of each\n"
             "stream of a run at most `pages` pages are checked. Costs some tenths of a microsecond per page.");
    m.def("copied", &copied, "array"_a,
          "Return a copy of an array. DataError if it is mapped from a file that was truncated or whose disk\n"
          "fails, where other code would be killed.");
    m.def("bounds_end", &bounds_end, "bounds"_a, "name"_a,
          "Return the last entry of `bounds` (int64[n + 1]). ValueError, which calls them `name`, unless they\n"
          "begin at 0 and never decrease; DataError as in copied().");
    m.def("first_bad_index", &py_first_bad_index, "indices"_a, "classes"_a,
          "Return the place of the first of `indices` (int32[n]) outside [0, classes), or -1. DataError as in\n"
          "copied().");
    m.def("first_bad_text", &py_first_bad_text, "data"_a, "bounds"_a,
          "Return the place of the first of the strings data[bounds[i]:bounds[i + 1]] (uint8[n], int64[m + 1]) that\n"
          "is not UTF-8, or -1. ValueError for bounds that do not fit; DataError as in copied().");
    m.def("first_uneven", &py_first_uneven, "offsets"_a, "lengths"_a,
          "Return the place of the first of `lengths` (int32[n]) that differs from the length between its\n"
          "neighbours in `offsets` (int64[n + 1]), or -1. DataError as in copied().");
    m.def("pad", &py_pad, "rows"_a.none(), "offsets"_a.none(), "fill"_a.none(), "length"_a = -1,
          "Return packed sequences as a padded copy, and where it is real: (padded (n, T, *shape), mask bool\n"
          "(n, T)).\n\n"
          "rows: (N, *shape). offsets: int64[n + 1]. fill: an array of one element, of the dtype of rows. T is\n"
          "`length`, or for -1 the length of the longest sequence. ValueError if `length` is shorter than that,\n"
          "or if the offsets do not fit the rows.");
}
