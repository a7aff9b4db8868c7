// SPDX-License-Identifier: Apache-2.0
// Reading memory that may be lost: a mapped file that was truncated, or whose disk fails.
//
// To read such a page raises SIGBUS, which kills the process. `guarded` ends the kernel instead, and returns the
// address. A handler, installed at the first use, jumps out of the kernel if the thread is in one. Every other SIGBUS
// goes to the previous handler, or kills the process as before. If other code (faulthandler, torch's workers) replaces
// the handler, it is installed again. That is checked every 10 ms, so in between a fault goes to the other handler.
//
// Cost: some 15 ns per call, and a system call (100 to 200 ns) every 10 ms. The reads themselves cost nothing more.
#pragma once

#include <csetjmp>
#include <atomic>

namespace feedline {

// Installs the handler unless it is installed. May be called on any thread. `guarded` calls it.
void install_bus_error_handler();

namespace detail {

// A kernel that is running, on the stack of its thread.
struct Guard {
    sigjmp_buf back;
    const void* volatile address = nullptr;
    Guard* outer = nullptr;
};

// The innermost guard of this thread.
Guard*& innermost();

}  // namespace detail

// Runs work() and returns null, or the address that could not be read. In that case work() was abandoned half-way, so
// it must need no clean-up: no destructors, locks or allocations, nor calls of code that may have them. Kernels have
// none.
template <class Work>
__attribute__((noinline)) const void* guarded(const Work& work) {
    install_bus_error_handler();
    detail::Guard guard;
    detail::Guard*& place = detail::innermost();
    guard.outer = place;
    place = &guard;
    // The signal mask is not saved, which would take a system call. The handler does not change it.
    if (sigsetjmp(guard.back, 0) == 0) {
        work();
        std::atomic_signal_fence(std::memory_order_seq_cst);  // all reads end before the guard does
    }
    place = guard.outer;
    return guard.address;
}

}  // namespace feedline
