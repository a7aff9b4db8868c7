// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

namespace feedline::bindings {

// Releases the GIL until the end of the scope.
//
// During interpreter shutdown, Python before 3.14 ends a daemon thread that requests the GIL by unwinding its stack,
// which aborts the process at a destructor. Such a thread waits here forever instead, as it does from 3.14 on, and ends
// with the process.
class Unlocked {
  public:
    Unlocked() noexcept : state_(PyEval_SaveThread()) {}
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;
    ~Unlocked() {
        try {
            PyEval_RestoreThread(state_);
        } catch (abi::__forced_unwind&) {
            for (;;) pause();
        }
    }

  private:
    PyThreadState* state_;
};

}  // namespace feedline::bindings
