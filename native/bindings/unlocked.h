// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace feedline::bindings {

// Requests the GIL. During interpreter shutdown, Python before 3.14 ends a daemon thread that does so: pthread_exit()
// unwinds its stack, which aborts the process at a destructor. Such a thread waits here forever instead, as it does from
// 3.14 on, and ends with the process.
void restore_thread(PyThreadState* state) noexcept;

// Releases the GIL until the end of the scope.
class Unlocked {
  public:
    Unlocked() noexcept : state_(PyEval_SaveThread()) {}
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;
    ~Unlocked() { restore_thread(state_); }

  private:
    PyThreadState* state_;
};

}  // namespace feedline::bindings
