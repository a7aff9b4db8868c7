// SPDX-License-Identifier: Apache-2.0
// Reading memory that may be gone: a mapped file that was cut, or whose disk fails.
//
// Touching such a page raises SIGBUS, and that ends a process. `guarded` ends the kernel instead, and says which
// address it was. A handler, installed at the first use, jumps out of the kernel if the thread is in one; every
// other SIGBUS goes to whoever handled it before, and ends the process as before where nobody did. The handler is
// put back when somebody else takes its place (faulthandler, torch's workers): that is looked at again 10 ms after
// the last look, so in between a fault is the other's.
//
// Cost: some 15 ns a call, and a system call (100 to 200 ns) every 10 ms. Nothing for the memory that is read.
#pragma once

#include <csetjmp>
#include <atomic>

namespace feedline {

// Installs the handler if it is not there. Any thread; `guarded` does so itself.
void watch_bus_errors();

namespace detail {

// A kernel under way, in the frame of the thread that runs it.
struct Guard {
    sigjmp_buf back;
    const void* volatile address = nullptr;
    Guard* outer = nullptr;
};

// The innermost one of this thread.
Guard*& innermost();

}  // namespace detail

// Runs work() and returns null, or the address that could not be read; work() was then left half-way. So nothing in
// it may need an end: no destructors, locks or allocations, no calls of code that might have them. Kernels have none.
template <class Work>
__attribute__((noinline)) const void* guarded(const Work& work) {
    watch_bus_errors();
    detail::Guard guard;
    detail::Guard*& place = detail::innermost();
    guard.outer = place;
    place = &guard;
    // The mask is not saved, which would take a system call: the handler runs with the thread's own.
    if (sigsetjmp(guard.back, 0) == 0) {
        work();
        std::atomic_signal_fence(std::memory_order_seq_cst);  // all reads are over before the guard is
    }
    place = guard.outer;
    return guard.address;
}

}  // namespace feedline
