// SPDX-License-Identifier: Apache-2.0
// What the bindings of fetch and gather share: a fetcher with its files and memory.
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

// How long to wait for a work before looking for Ctrl-C.
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
    std::uint64_t disk_bytes = 0;  // read for works that were waited for

    // Waits without the GIL, and lets Ctrl-C end the wait.
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
    // Gives a work up whose end nobody wants to know.
    void cancel(Work& work) {
        if (work.done()) return;
        const Unlocked unlocked;
        fetcher.cancel(work);
    }
};

}  // namespace feedline::bindings
