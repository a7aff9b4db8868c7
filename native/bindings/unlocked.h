// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

namespace feedline::bindings {

// Releases the GIL until the end of the scope.
//
// A daemon thread that asks for the GIL back while the interpreter shuts down is ended by it: before Python 3.14 by an
// unwinding that no destructor may let pass, so that the process would abort. Such a thread stays here instead, as it
// does from 3.14 on, and ends with the process.
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
