// SPDX-License-Identifier: Apache-2.0
// Many merges in one call of the kernel: collected by address, then run without the GIL if that pays.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "feedline/merge.h"
#include "feedline/threads.h"
#include "unlocked.h"

namespace feedline::bindings {

// A merge this small ends before another thread could use the GIL.
inline constexpr std::size_t kHoldGil = std::size_t{1} << 15;
// Starting a thread costs about what merging 100 KB does.
inline constexpr std::size_t kOneThread = std::size_t{1} << 20;
// Output of this size does not fit into a typical last-level cache together with the input.
inline constexpr std::size_t kStream = std::size_t{16} << 20;

template <class T>
void run_merges(const std::vector<Merge<T>>& merges, std::size_t total, std::size_t bytes, std::size_t written,
         std::size_t threads) {
    const bool streaming = written >= kStream;
    if (bytes < kOneThread) threads = 1;
    in_parts(threads, [&](std::size_t k) {
        merge(merges.data(), merges.size(), total * k / threads, total * (k + 1) / threads, streaming);
    });
}

// Whether an output overlaps an input without being identical to it.
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
class MergeBatch {
public:
    // Begins a job over `count` elements. `input` and `output` then add its arrays.
    void job(std::size_t count) {
        begins_.push_back(places_.size());
        merges_.push_back({nullptr, 0, nullptr, 0, count});
    }

    // All inputs come before the first output.
    void input(std::uintptr_t address) {
        places_.push_back(address);
        ++merges_.back().num_in;
    }

    void output(std::uintptr_t address) {
        places_.push_back(address);
        ++merges_.back().num_out;
    }

    // Removes the last job.
    void drop() {
        places_.resize(begins_.back());
        begins_.pop_back();
        merges_.pop_back();
    }

    // Does all jobs. May be called once.
    void run(std::size_t threads) {
        std::size_t total = 0, bytes = 0, written = 0;
        for (std::size_t j = 0; j < merges_.size(); ++j) {
            Merge<T>& job = merges_[j];
            const auto* first = places_.data() + begins_[j];
            job.in = reinterpret_cast<const T* const*>(first);
            job.out = reinterpret_cast<T* const*>(first + job.num_in);
            total += job.count;
            bytes += job.count * sizeof(T) * (job.num_in + job.num_out);
            written += job.count * sizeof(T) * job.num_out;
        }
        // Outputs that overlap inputs are written after all inputs have been read.
        std::vector<Merge<T>> later;
        std::size_t later_total = 0;
        for (Merge<T>& job : merges_) {
            if (job.num_out < 2 || !overlaps(job)) continue;
            later.push_back({const_cast<const T* const*>(job.out), 1, job.out + 1, job.num_out - 1, job.count});
            later_total += job.count;
            job.num_out = 1;
        }
        if (bytes < kHoldGil) {
            run_merges(merges_, total, bytes, written, 1);
            run_merges(later, later_total, bytes, written, 1);
        } else {
            const Unlocked unlocked;
            run_merges(merges_, total, bytes, written, threads);
            run_merges(later, later_total, bytes, written, threads);
        }
    }

private:
    std::vector<Merge<T>> merges_;
    std::vector<std::uintptr_t> places_;
    std::vector<std::size_t> begins_;
};

}  // namespace feedline::bindings
