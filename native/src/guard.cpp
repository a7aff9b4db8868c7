#include "feedline/guard.h"

#include <sched.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#if defined(__x86_64__) && defined(__linux__)
#include <ucontext.h>
#endif

#include "system.h"

namespace feedline {
namespace {

constexpr std::int64_t kCheckPeriodMs = 10;

// Previous handlers, the latest first. A thread may be running one, so none is ever freed.
struct PreviousHandler {
    struct sigaction action;
    const PreviousHandler* earlier;
};

std::atomic<const PreviousHandler*> latest{nullptr};
std::atomic<std::int64_t> last_check_ms{INT64_MIN};
std::atomic<pid_t> installer{0};  // the process that is installing the handler; that of a parent is ignored

thread_local detail::Guard* in_kernel = nullptr;

// A signal is passed on once to each handler. If a handler raises the signal again, as handlers do that clean up and
// let the process die, or returns to the same fault, the handler before it is next.
thread_local const PreviousHandler* running_handler = nullptr;
thread_local const PreviousHandler* returned_handler = nullptr;
thread_local const void* returned_to = nullptr;

bool is_default(const struct sigaction& action) {
    return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
}

bool is_ignored(const struct sigaction& action) {
    return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN;
}

void pass_on(int signal, siginfo_t* info, void* context) {
    const bool fault = info->si_code > 0;  // from the kernel, for an instruction; otherwise sent by a process
    const PreviousHandler* next = latest.load(std::memory_order_acquire);
    if (fault && returned_handler != nullptr && info->si_addr == returned_to) next = returned_handler->earlier;
    if (!fault && running_handler != nullptr) next = running_handler->earlier;
    if (next != nullptr && is_ignored(next->action) && !fault) return;
    if (next == nullptr || is_default(next->action) || is_ignored(next->action)) {
        struct sigaction plain {};
        plain.sa_handler = SIG_DFL;
        sigaction(signal, &plain, nullptr);
        if (!fault) raise(signal);
        return;  // the fault recurs, and this time kills the process where it happened
    }
    returned_handler = nullptr;
    running_handler = next;
    if ((next->action.sa_flags & SA_SIGINFO) != 0)
        next->action.sa_sigaction(signal, info, context);
    else
        next->action.sa_handler(signal);
    running_handler = nullptr;
    returned_handler = next;
    returned_to = info->si_addr;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
    // The other codes are for signals sent by a process, misaligned addresses and broken memory, not for lost pages.
    if (info->si_code != BUS_ADRERR || in_kernel == nullptr) {
        pass_on(signal, info, context);
        return;
    }
#if defined(__x86_64__) && defined(__linux__)
    // The kernel gave this handler a fresh floating-point state, which the jump would keep. So the thread's own
    // rounding mode and treatment of denormals are restored.
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
    latest.store(new PreviousHandler{action, latest.load(std::memory_order_relaxed)}, std::memory_order_release);
}

void install() {
    struct sigaction now;
    if (sigaction(SIGBUS, nullptr, &now) != 0 || is_ours(now)) return;
    // Recorded before it is replaced, since a fault may occur in between.
    remember(now);
    struct sigaction ours {};
    ours.sa_sigaction = on_bus_error;
    // No mask, and the signal itself not masked, so that there is no mask to restore after a jump. On the alternate
    // stack if the thread has one, as the previous handlers may expect.
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    struct sigaction replaced;
    sigaction(SIGBUS, &ours, &replaced);
    if (replaced.sa_sigaction != now.sa_sigaction && !is_ours(replaced)) remember(replaced);
}

}  // namespace

detail::Guard*& detail::innermost() { return in_kernel; }

void install_bus_error_handler() {
    const std::int64_t now = coarse_milliseconds();
    const std::int64_t before = last_check_ms.load(std::memory_order_acquire);
    if (before != INT64_MIN && now - before < kCheckPeriodMs) return;
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
    last_check_ms.store(now, std::memory_order_release);
    installer.store(0, std::memory_order_release);
}

}  // namespace feedline
