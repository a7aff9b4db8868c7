#include "feedline/gather_job.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "feedline/guard.h"
#include "feedline/threads.h"

namespace feedline {

// Starting a thread costs about what copying 100 KB does.
static constexpr std::size_t kThreadedBytes = std::size_t{1} << 20;
// Bytes that the background thread copies before it checks whether its task was abandoned: some ten microseconds.
static constexpr std::size_t kPartBytes = std::size_t{128} << 10;
// Sequences whose entries are checked together once they are copied, while the caches have them.
static constexpr std::size_t kCheckAt = 512;

static std::size_t slot_of(const Picks& picks, std::size_t place) {
    return picks.slots == nullptr ? 0 : picks.slots[place];
}

// ---- filling --------------------------------------------------------------------------------------------

// Whether the bounds of the rows copied for places [begin, end) ascend, and end as planned.
bool GatherJob::bounds_ascend(std::size_t begin, std::size_t end) const {
    const SparseRun &first = runs[begin], &last = runs[end];
    return ascends(indptr + first.out_row + 1, static_cast<std::size_t>(last.out_row - first.out_row), first.out_value,
                 last.out_value);
}

// Copies sparse rows, few enough for the caches, and checks them.
void GatherJob::copy_checked(std::size_t begin, std::size_t end, GatherOutcome& outcome) const {
    copy_sparse(runs.get(), item_bytes, indptr, indices, rows, begin, end);
    if (!bounds_ascend(begin, end)) {
        std::size_t changed = begin;
        while (changed + 1 < end && bounds_ascend(changed, changed + 1)) ++changed;
        outcome.changed = runs[changed].indptr;
    }
    if (classes >= 0) {
        const auto first = static_cast<std::size_t>(runs[begin].out_value);
        const auto last = static_cast<std::size_t>(runs[end].out_value);
        if (first_bad_index(indices, first, last, static_cast<std::uint32_t>(classes)) < last) outcome.bad = true;
    } else if (classes == kText && outcome.changed.load(std::memory_order_relaxed) == nullptr) {
        // The beginning of the first one is not read from indptr, as another thread may be writing it.
        const SparseRun& run = runs[begin];
        const auto strings = static_cast<std::size_t>(runs[end].out_row - run.out_row);
        if (first_bad_text(rows, run.out_value, indptr + run.out_row + 1, strings) < strings) outcome.bad = true;
    }
}

void GatherJob::copy(const Picks& picks, std::size_t begin, std::size_t end, GatherOutcome& outcome) const {
    if (is_sparse) {
        for (std::size_t at = begin; at < end; at += kCheckAt) copy_checked(at, std::min(at + kCheckAt, end), outcome);
        return;
    }
    std::size_t first = begin, last = end;  // rows
    if (offsets != nullptr) {
        first = static_cast<std::size_t>(offsets[begin]);
        last = static_cast<std::size_t>(offsets[end]);
        if (is_strided)
            copy_strided_ragged(picks, dense, from.get(), offsets, item_bytes, rows, begin, end);
        else
            copy_ragged(from.get(), offsets, item_bytes, rows, begin, end);
    } else if (is_strided) {
        copy_strided_rows(picks, dense, item_bytes, rows, begin, end);
    } else {
        copy_rows(picks, dense, item_bytes, rows, begin, end);
    }
    if (bools && first_bad_bool(rows, first * item_bytes, last * item_bytes) < last * item_bytes) outcome.bad = true;
}

void run_jobs(const std::vector<GatherJob>& jobs, const ChunkTable& table, const Picks& picks, std::size_t begin,
              std::size_t end, GatherOutcome& outcome) {
    if (outcome.unreadable.load(std::memory_order_relaxed) != nullptr) return;
    const void* fault = guarded([&] {
        for (const GatherJob& job : jobs) job.copy(picks, begin, end, outcome);
        // Last: a file that was cut before its bytes were copied is cut by now.
        if (const std::byte* broken = table.first_broken_seal(picks, begin, end)) outcome.broken = broken;
    });
    if (fault != nullptr) outcome.unreadable = fault;
}

void run_all(const std::vector<GatherJob>& jobs, const ChunkTable& table, const Picks& picks, std::size_t bytes,
             std::size_t threads, GatherOutcome& outcome) {
    const std::size_t n = picks.count;
    if (bytes <= kThreadedBytes) threads = 1;
    threads = std::max<std::size_t>(1, std::min(threads, n));
    in_parts(threads, [&](std::size_t k) {
        run_jobs(jobs, table, picks, n * k / threads, n * (k + 1) / threads, outcome);
    });
}

// ---- planning -------------------------------------------------------------------------------------------

bool needs_offsets(const ChunkTable& table, std::size_t s, const Picks& picks) {
    const ChunkTable::Stream& stream = table.streams()[s];
    if (!stream.ever_ragged || picks.count == 0) return stream.ever_ragged;
    return stream.sparse() ? any_ragged(picks, table.sparse(s)) : any_ragged(picks, table.dense(s));
}

// The address of the impossible offsets or bounds of a pick.
static const void* bounds_of(const GatherJob& job, const Picks& picks, std::ptrdiff_t fault) {
    const std::size_t slot = slot_of(picks, static_cast<std::size_t>(fault));
    const std::int64_t index = picks.index[fault];
    if (!job.is_sparse) {
        const DenseSource& dense = job.dense[slot];
        // Without offsets, the sum of the rows has overflowed at this one.
        return dense.offsets != nullptr ? static_cast<const void*>(dense.offsets + index) : dense.rows;
    }
    const SparseSource& sparse = job.sparse[slot];
    return sparse.offsets != nullptr ? sparse.offsets + index : sparse.indptr + index * (sparse.spans ? 2 : 1);
}

GatherJob plan_gather(const ChunkTable& table, std::size_t s, const Picks& picks, std::int64_t* offsets,
                      GatherOutcome& outcome) {
    const ChunkTable::Stream& stream = table.streams()[s];
    const std::size_t n = picks.count;
    GatherJob job;
    job.is_sparse = stream.sparse();
    job.bools = stream.bools;
    job.is_strided = stream.ever_strided;
    job.classes = stream.classes;
    job.item_bytes = stream.item_bytes;
    job.dense = table.dense(s);
    job.sparse = table.sparse(s);
    job.offsets = offsets;
    const void* unreadable = nullptr;
    std::ptrdiff_t fault = -1;
    if (job.is_sparse) {
        job.runs = std::unique_ptr<SparseRun[]>(new SparseRun[n + 1]);
        SparseTotals totals{0, 0, -1};
        unreadable = guarded([&] { totals = plan_sparse(picks, job.sparse, job.item_bytes, job.runs.get(), offsets); });
        fault = totals.fault;
        job.num_rows = totals.rows;
        job.num_values = totals.values;
    } else if (offsets != nullptr) {
        job.from = std::unique_ptr<const std::byte*[]>(new const std::byte*[n]);
        unreadable = guarded([&] { fault = plan_ragged(picks, job.dense, job.item_bytes, job.from.get(), offsets); });
        job.num_rows = offsets[n];
    } else {
        job.num_rows = static_cast<std::int64_t>(n);
    }
    if (unreadable != nullptr)
        outcome.unreadable = unreadable;
    else if (fault >= 0)
        outcome.changed = bounds_of(job, picks, fault);
    return job;
}

// ---- bad entries ----------------------------------------------------------------------------------------

namespace {

// Collects the bad entries of one job.
struct Finder {
    const GatherJob& job;
    const ChunkTable& table;
    const Picks& picks;
    const std::size_t stream;
    std::vector<BadEntry>& entries;
    std::size_t last = picks.count;  // the place that was added last

    void add(std::size_t place, std::int64_t entry, const void* source) {
        if (place == last) return;
        last = place;
        // For bytes that were brought into memory, the place in their file.
        if (const StageWork* origin = table.origin(slot_of(picks, place)))
            source = origin->origin(static_cast<const std::byte*>(source));
        entries.push_back({place, stream, entry, job.classes, source});
    }

    void blank_texts() {
        const SparseRun* runs = job.runs.get();
        const auto end = static_cast<std::size_t>(runs[picks.count].out_row);
        std::size_t place = 0;
        for (std::size_t row = 0;
             (row += first_bad_text(job.rows, job.indptr[row], job.indptr + row + 1, end - row)) < end; ++row) {
            while (static_cast<std::size_t>(runs[place + 1].out_row) <= row) ++place;
            const auto from = static_cast<std::size_t>(job.indptr[row]);
            const std::size_t size = static_cast<std::size_t>(job.indptr[row + 1]) - from;
            const std::size_t at = from + first_bad_utf8(job.rows + from, size);
            add(place, std::to_integer<std::int64_t>(job.rows[at]),
                runs[place].values + (at - static_cast<std::size_t>(runs[place].out_value)));
            std::fill_n(job.rows + from, size, std::byte{0});
        }
    }

    void blank_indices() {
        const SparseRun* runs = job.runs.get();
        const auto end = static_cast<std::size_t>(runs[picks.count].out_value);
        const auto width = static_cast<std::uint32_t>(job.classes);
        std::size_t place = 0;
        for (std::size_t at = 0; (at = first_bad_index(job.indices, at, end, width)) < end; ++at) {
            while (static_cast<std::size_t>(runs[place + 1].out_value) <= at) ++place;
            add(place, job.indices[at], runs[place].indices + (at - static_cast<std::size_t>(runs[place].out_value)));
            job.indices[at] = 0;
        }
    }

    void blank_bools() {
        const std::size_t row = job.item_bytes;
        const auto start = [&](std::size_t place) {
            return (job.offsets == nullptr ? place : static_cast<std::size_t>(job.offsets[place])) * row;
        };
        const std::size_t end = start(picks.count);
        std::size_t place = 0;
        for (std::size_t at = 0; (at = first_bad_bool(job.rows, at, end)) < end; ++at) {
            while (start(place + 1) <= at) ++place;
            const DenseSource& dense = job.dense[slot_of(picks, place)];
            const std::byte* source = nullptr;
            if (dense.windows != nullptr)  // the start of the array is near enough
                source = dense.rows;
            else if (job.offsets != nullptr)
                source = job.from[place] + (at - start(place));
            else if (dense.layout == nullptr)
                source = dense.rows + static_cast<std::size_t>(picks.index[place]) * row + (at - start(place));
            else  // the start of the row is near enough
                source = dense.rows + static_cast<std::ptrdiff_t>(picks.index[place]) * dense.layout->row_stride;
            add(place, std::to_integer<std::int64_t>(job.rows[at]), source);
            job.rows[at] = std::byte{0};
        }
    }
};

}  // namespace

std::vector<BadEntry> blank_bad_entries(const std::vector<GatherJob>& jobs, const ChunkTable& table,
                                        const Picks& picks) {
    std::vector<BadEntry> entries;
    for (std::size_t s = 0; s < jobs.size(); ++s) {
        Finder finder{jobs[s], table, picks, s, entries};
        if (jobs[s].classes == kText)
            finder.blank_texts();
        else if (jobs[s].classes >= 0)
            finder.blank_indices();
        else if (jobs[s].bools)
            finder.blank_bools();
    }
    return entries;
}

// ---- in the background ----------------------------------------------------------------------------------

GatherWork::GatherWork(const Picks& from) : index(from.index, from.index + from.count) {
    if (from.slots != nullptr) slots.assign(from.slots, from.slots + from.count);
    picks = {from.slots == nullptr ? nullptr : slots.data(), index.data(), from.count};
}

std::shared_ptr<Task> start_gather(std::shared_ptr<GatherWork> work, const ChunkTable& table, std::size_t bytes) {
    const std::size_t n = work->picks.count, parts = std::min(n, bytes / kPartBytes + 1);
    auto task = std::make_shared<Task>(parts, [work = std::move(work), table = &table, parts, n](std::size_t k) {
        run_jobs(work->jobs, *table, work->picks, n * k / parts, n * (k + 1) / parts, work->outcome);
    });
    Background::of_this_process().start(task);
    return task;
}

// ---- parts of one array ---------------------------------------------------------------------------------

PartsLayout::PartsLayout(std::size_t row_bytes, bool sliced) : row_bytes_(row_bytes), by_bytes_(false) {
    if (row_bytes != 0) unit_ = kArrayAlign / std::gcd(row_bytes, kArrayAlign);
    by_bytes_ = unit_ != 1 && !sliced;
    if (by_bytes_) unit_ = kArrayAlign;
}

void PartsLayout::add(std::int64_t rows) {
    at_.push_back(end_);
    rows_.push_back(rows);
    end_ += static_cast<std::size_t>(rows) * (by_bytes_ ? row_bytes_ : 1);
    end_ = (end_ + unit_ - 1) / unit_ * unit_;
}

}  // namespace feedline
