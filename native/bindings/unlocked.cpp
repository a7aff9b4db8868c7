// SPDX-License-Identifier: Apache-2.0
// Compiled without exceptions. Then the handler of a thread's end is known to the C library, whatever C++ library there
// is, and runs before any destructor of the thread's stack.
#include <Python.h>
#include <pthread.h>
#include <unistd.h>

namespace feedline::bindings {

void restore_thread(PyThreadState* state) noexcept;

namespace {

void wait_for_the_end(void*) {
    for (;;) pause();
}

}  // namespace

void restore_thread(PyThreadState* state) noexcept {
    pthread_cleanup_push(wait_for_the_end, nullptr);
    PyEval_RestoreThread(state);
    pthread_cleanup_pop(0);
}

}  // namespace feedline::bindings
