#include "feedline/merge.h"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

#include "arrays.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace feedline;
using feedline::bindings::number;
using feedline::bindings::raise;

namespace {

// A merge this small is over before another thread could use the GIL.
constexpr std::size_t kHoldGil = std::size_t{1} << 15;
// Starting a thread costs about what merging 100 KB does.
constexpr std::size_t kOneThread = std::size_t{1} << 20;
// What is written no longer fits a last-level cache of usual size beside what is read.
constexpr std::size_t kStream = std::size_t{16} << 20;

std::size_t size_of(nb::handle count) {
    const auto n = nb::cast<std::int64_t>(count);
    if (n < 0) raise<nb::value_error>("expected a count of elements >= 0, got " + number(n));
    return static_cast<std::size_t>(n);
}

template <class T>
void run(const std::vector<Merge<T>>& merges, std::size_t total, std::size_t bytes, std::size_t written,
         std::size_t threads) {
    const bool streaming = written >= kStream;
    const auto part = [&](std::size_t k) {
        merge(merges.data(), merges.size(), total * k / threads, total * (k + 1) / threads, streaming);
    };
    if (bytes < kOneThread || threads == 1) {
        threads = 1;
        part(0);
        return;
    }
    // Threads live for one call: nothing is left behind for a fork to break.
    std::vector<std::thread> helpers;
    std::size_t started = 1;
    try {
        helpers.reserve(threads - 1);
        for (; started < threads; ++started) helpers.emplace_back(part, started);
    } catch (const std::system_error&) {
        // The system has no thread left to give: this one does the remaining parts.
    }
    part(0);
    for (std::size_t k = started; k < threads; ++k) part(k);
    for (std::thread& helper : helpers) helper.join();
}

// Whether an output shares a part of its memory with an input, without being it.
template <class T>
bool overlaps(const Merge<T>& job) {
    for (std::size_t k = 0; k < job.num_out; ++k) {
        const auto to = reinterpret_cast<std::uintptr_t>(job.out[k]);
        for (std::size_t i = 0; i < job.num_in; ++i) {
            const auto from = reinterpret_cast<std::uintptr_t>(job.in[i]);
            const std::uintptr_t apart = to > from ? to - from : from - to;
            if (apart != 0 && apart < job.count * sizeof(T)) return true;
        }
    }
    return false;
}

template <class T>
void merge_all(nb::sequence jobs, std::size_t threads) {
    std::vector<Merge<T>> merges;
    std::vector<std::uintptr_t> places;
    std::vector<std::size_t> begins;
    std::size_t total = 0, bytes = 0, written = 0;
    for (nb::handle job : jobs) {
        const nb::tuple fields = nb::cast<nb::tuple>(job);
        if (fields.size() != 3) raise<nb::value_error>("expected jobs of 3 fields, got " + number(fields.size()));
        Merge<T> next{nullptr, 0, nullptr, 0, size_of(fields[0])};
        begins.push_back(places.size());
        for (nb::handle address : nb::cast<nb::sequence>(fields[1])) {
            places.push_back(nb::cast<std::uintptr_t>(address));
            ++next.num_in;
        }
        for (nb::handle address : nb::cast<nb::sequence>(fields[2])) {
            places.push_back(nb::cast<std::uintptr_t>(address));
            ++next.num_out;
        }
        if (next.num_in == 0) throw nb::value_error("expected at least one input for each job, got none");
        total += next.count;
        bytes += next.count * sizeof(T) * (next.num_in + next.num_out);
        written += next.count * sizeof(T) * next.num_out;
        merges.push_back(next);
    }
    for (std::size_t j = 0; j < merges.size(); ++j) {
        const auto* first = places.data() + begins[j];
        merges[j].in = reinterpret_cast<const T* const*>(first);
        merges[j].out = reinterpret_cast<T* const*>(first + merges[j].num_in);
    }
    // Outputs that lie across inputs are written when all of these have been read.
    std::vector<Merge<T>> later;
    std::size_t later_total = 0;
    for (Merge<T>& job : merges) {
        if (job.num_out < 2 || !overlaps(job)) continue;
        later.push_back({const_cast<const T* const*>(job.out), 1, job.out + 1, job.num_out - 1, job.count});
        later_total += job.count;
        job.num_out = 1;
    }
    if (bytes < kHoldGil) {
        run(merges, total, bytes, written, 1);
        run(later, later_total, bytes, written, 1);
    } else {
        nb::gil_scoped_release unlocked;
        run(merges, total, bytes, written, threads);
        run(later, later_total, bytes, written, threads);
    }
}

void merge_jobs(nb::sequence jobs, std::int64_t item_bytes, std::int64_t threads) {
    if (threads < 1) raise<nb::value_error>("expected threads >= 1, got " + number(threads));
    if (item_bytes == 4) {
        merge_all<float>(jobs, static_cast<std::size_t>(threads));
    } else if (item_bytes == 8) {
        merge_all<double>(jobs, static_cast<std::size_t>(threads));
    } else {
        raise<nb::value_error>("expected floats of 4 or 8 bytes, got " + number(item_bytes));
    }
}

}  // namespace

void bind_merge(nb::module_& m) {
    m.def("merge", &merge_jobs, "jobs"_a, "item_bytes"_a, "threads"_a = 1,
          "Sums, and copies of each sum, in one pass. Each job is (count, inputs, outputs): addresses of\n"
          "float32 or float64 arrays of `count` elements that the caller has checked, aligned, and keeps\n"
          "alive and unchanged during the call. The first output overlaps no input unless it is one; others\n"
          "may. Work above 1 MiB uses up to `threads` threads; above 32 KiB\n"
          "the GIL is released.");
}
