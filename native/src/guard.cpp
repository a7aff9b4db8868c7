#include "feedline/guard.h"

#include <sched.h>
#include <signal.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#if defined(__x86_64__)
#include <ucontext.h>
#endif

namespace feedline {
namespace {

constexpr std::int64_t kLookEvery = 10;  // milliseconds

// Previous handlers, the latest first. One may be running, so none is ever freed.
struct Before {
    struct sigaction action;
    const Before* earlier;
};

std::atomic<const Before*> latest{nullptr};
std::atomic<std::int64_t> looked{INT64_MIN};  // milliseconds
std::atomic<pid_t> installer{0};              // the process that is installing; a parent's is ignored

thread_local detail::Guard* in_kernel = nullptr;

// Passing on is done once for each handler: one that raises the signal again, as handlers do that clean up and let
// the process die, or that comes back to the same fault, gives way to the one before it.
thread_local const Before* having_its_turn = nullptr;
thread_local const Before* came_back = nullptr;
thread_local const void* came_back_to = nullptr;

bool is_default(const struct sigaction& action) {
    return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
}

bool is_ignored(const struct sigaction& action) {
    return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN;
}

void pass_on(int signal, siginfo_t* info, void* context) {
    const bool fault = info->si_code > 0;  // by the kernel, for an instruction; otherwise sent
    const Before* next = latest.load(std::memory_order_acquire);
    if (fault && came_back != nullptr && info->si_addr == came_back_to) next = came_back->earlier;
    if (!fault && having_its_turn != nullptr) next = having_its_turn->earlier;
    if (next != nullptr && is_ignored(next->action) && !fault) return;
    if (next == nullptr || is_default(next->action) || is_ignored(next->action)) {
        struct sigaction plain {};
        plain.sa_handler = SIG_DFL;
        sigaction(signal, &plain, nullptr);
        if (!fault) raise(signal);
        return;  // the fault recurs, and this time kills the process where it happened
    }
    came_back = nullptr;
    having_its_turn = next;
    if ((next->action.sa_flags & SA_SIGINFO) != 0)
        next->action.sa_sigaction(signal, info, context);
    else
        next->action.sa_handler(signal);
    having_its_turn = nullptr;
    came_back = next;
    came_back_to = info->si_addr;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
    // Other codes are not about pages that are gone: sent by a process, misaligned, memory that broke.
    if (info->si_code != BUS_ADRERR || in_kernel == nullptr) {
        pass_on(signal, info, context);
        return;
    }
#if defined(__x86_64__)
    // The kernel gave this handler a fresh floating-point state, and the jump would keep it: how the thread rounds
    // and flushes denormals is put back.
    const auto* state = static_cast<const ucontext_t*>(context)->uc_mcontext.fpregs;
    if (state != nullptr) {
        asm volatile("ldmxcsr %0" : : "m"(state->mxcsr));
        asm volatile("fldcw %0" : : "m"(state->cwd));
    }
#else
    (void)context;
#endif
    in_kernel->address = info->si_addr;
    siglongjmp(in_kernel->back, 1);
}

bool is_ours(const struct sigaction& action) {
    return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_bus_error;
}

void remember(const struct sigaction& action) {
    latest.store(new Before{action, latest.load(std::memory_order_relaxed)}, std::memory_order_release);
}

void install() {
    struct sigaction now;
    if (sigaction(SIGBUS, nullptr, &now) != 0 || is_ours(now)) return;
    // Recorded before it is replaced, since a fault may come in between.
    remember(now);
    struct sigaction ours {};
    ours.sa_sigaction = on_bus_error;
    // No mask, and not masked itself: there is none to put back after a jump. On the alternate stack where the thread
    // has one, as those who are passed on to may expect.
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    struct sigaction replaced;
    sigaction(SIGBUS, &ours, &replaced);
    if (replaced.sa_sigaction != now.sa_sigaction && !is_ours(replaced)) remember(replaced);
}

}  // namespace

detail::Guard*& detail::innermost() { return in_kernel; }

void watch_bus_errors() {
    timespec clock;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &clock);
    const std::int64_t now = clock.tv_sec * std::int64_t{1000} + clock.tv_nsec / 1000000;
    const std::int64_t before = looked.load(std::memory_order_acquire);
    if (before != INT64_MIN && now - before < kLookEvery) return;
    const pid_t self = getpid();
    pid_t other = 0;
    while (!installer.compare_exchange_weak(other, self, std::memory_order_acq_rel)) {
        if (other == self) {
            sched_yield();
            other = 0;
        }
        // Otherwise `other` is 0, or a parent whose thread was installing at the fork and does not exist here.
    }
    install();
    looked.store(now, std::memory_order_release);
    installer.store(0, std::memory_order_release);
}

}  // namespace feedline
