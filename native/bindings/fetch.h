// SPDX-License-Identifier: Apache-2.0
// A fetcher with its files and memory, shared by the bindings of fetch and gather.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <memory>
#include <vector>

#include "feedline/fetch.h"
#include "feedline/stage.h"

#include "unlocked.h"

namespace feedline::bindings {

namespace nb = nanobind;

// The interval between checks for Ctrl-C while a call waits.
constexpr std::chrono::milliseconds kSignalPeriod{50};

struct Disk {
    Disk(Fetcher::Backend backend, unsigned depth, std::size_t keep)
        : fetcher(backend, depth),
          pool(std::make_shared<BlockPool>(keep)),
          mapped(std::make_shared<MappedFiles>()) {}

    Fetcher fetcher;
    std::shared_ptr<BlockPool> pool;
    std::vector<std::shared_ptr<const DiskFile>> files;  // by number
    std::shared_ptr<const MappedFiles> mapped;
    std::uint64_t disk_bytes = 0;  // read by works that have been waited for

    // Waits without the GIL, until Ctrl-C. MemoryError if the work ended for lack of memory.
    void wait(const Work& work) {
        while (!work.done()) {
            bool done;
            {
                const Unlocked unlocked;
                done = fetcher.wait(work, kSignalPeriod);
            }
            if (!done && PyErr_CheckSignals() != 0) throw nb::python_error();
        }
        if (work.starved()) {
            PyErr_NoMemory();
            throw nb::python_error();
        }
    }
    // Abandons a work.
    void cancel(Work& work) {
        if (work.done()) return;
        const Unlocked unlocked;
        fetcher.cancel(work);
    }
};

}  // namespace feedline::bindings
