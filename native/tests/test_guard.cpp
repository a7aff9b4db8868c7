// Reads of mapped files that are truncated: the kernel ends, but not the process, and previous handlers of SIGBUS get
// all other signals. Handlers are for the whole process, so each case has a process.
#include <fcntl.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "feedline/background.h"
#include "feedline/crc32c.h"
#include "feedline/gather.h"
#include "feedline/guard.h"
#include "check.h"

using namespace feedline;

static const std::size_t kPage = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));

// A mapped file of some pages with equal bytes, which is deleted with this object.
class Mapped {
public:
    explicit Mapped(std::size_t pages, char fill = 7) : size(pages * kPage) {
        char name[] = "/tmp/feedline-guard-XXXXXX";
        file_ = mkstemp(name);
        CHECK(file_ >= 0 && unlink(name) == 0);
        const std::vector<char> content(size, fill);
        CHECK(write(file_, content.data(), size) == static_cast<ssize_t>(size));
        void* at = mmap(nullptr, size, PROT_READ, MAP_SHARED, file_, 0);
        CHECK(at != MAP_FAILED);
        bytes = static_cast<const std::byte*>(at);
    }
    ~Mapped() {
        munmap(const_cast<std::byte*>(bytes), size);
        close(file_);
    }
    Mapped(const Mapped&) = delete;
    Mapped& operator=(const Mapped&) = delete;
    void cut(std::size_t to) { CHECK(ftruncate(file_, static_cast<off_t>(to)) == 0); }

    const std::size_t size;
    const std::byte* bytes;

private:
    int file_;
};

static std::byte touch(const std::byte* at) { return *static_cast<const volatile std::byte*>(at); }

// Whether the fault is in bytes [from, to) of the mapping.
static bool within(const Mapped& file, const void* fault, std::size_t from, std::size_t to) {
    const auto* at = static_cast<const std::byte*>(fault);
    return at != nullptr && file.bytes + from <= at && at < file.bytes + to;
}

static void test_reads_of_what_is_there() {
    const Mapped file(3);
    int done = 0;
    for (int i = 0; i < 1000; ++i)
        CHECK(guarded([&] { done += touch(file.bytes + i) == std::byte{7}; }) == nullptr);
    CHECK(done == 1000);
}

static void test_every_kernel_ends() {
    Mapped file(16);
    file.cut(3 * kPage + 100);
    const std::size_t good = 4 * kPage;  // the page that holds the end reads as zeros behind it
    std::vector<std::byte> out(2 * file.size);
    for (const std::size_t row : {1u, 4u, 16u, 100u, 256u, 700u, 3136u}) {
        const std::size_t rows = file.size / row;
        std::vector<std::int64_t> index(rows);
        for (std::size_t i = 0; i < rows; ++i) index[i] = static_cast<std::int64_t>(rows - 1 - i);
        const DenseSource source{file.bytes, nullptr, static_cast<std::int64_t>(rows)};
        Picks picks{nullptr, index.data(), rows};
        CHECK(within(file, guarded([&] { copy_rows(picks, &source, row, out.data(), 0, rows); }), good, file.size));
        // Rows that can be read are copied as before, before and after a fault.
        index.assign(good / row, 0);
        picks = {nullptr, index.data(), index.size()};
        CHECK(guarded([&] { copy_rows(picks, &source, row, out.data(), 0, index.size()); }) == nullptr);
        CHECK(out[0] == std::byte{7});

        const std::byte* from[1] = {file.bytes};
        const std::int64_t offsets[2] = {0, static_cast<std::int64_t>(rows)};
        CHECK(within(file, guarded([&] { copy_ragged(from, offsets, row, out.data(), 0, 1); }), good, file.size));
    }

    // Indices and values each beyond the end.
    const std::int64_t indptr[2] = {0, 16};
    std::int64_t out_indptr[2];
    std::int32_t out_indices[16];
    const std::vector<std::byte> here(file.size);
    const auto* gone = reinterpret_cast<const std::int32_t*>(file.bytes + 8 * kPage);
    for (const bool indices : {true, false}) {
        const SparseRun runs[2] = {
            {indptr, indices ? gone : reinterpret_cast<const std::int32_t*>(here.data()),
             indices ? here.data() : file.bytes + 8 * kPage, 0, 16, 0, 0},
            {nullptr, nullptr, nullptr, 0, 0, 1, 16}};
        const void* fault = guarded([&] { copy_sparse(runs, 8, out_indptr, out_indices, out.data(), 0, 1); });
        CHECK(within(file, fault, 8 * kPage, file.size));
    }

    CHECK(within(file, guarded([&] { crc32c(file.bytes, file.size, 0); }), good, file.size));
    Mapped zeros(4, 0);
    zeros.cut(kPage);
    const auto* level = reinterpret_cast<const std::int64_t*>(zeros.bytes);
    CHECK(within(zeros, guarded([&] { first_bad_bound(level, zeros.size / 8 - 1, 0); }), kPage, zeros.size));

    const auto* bounds = reinterpret_cast<const std::int64_t*>(file.bytes);
    const std::int64_t last = static_cast<std::int64_t>(file.size / 8) - 2;
    const Picks one{nullptr, &last, 1};
    const DenseSource ragged{here.data(), bounds, 5};
    const SparseSource sparse{indptr, nullptr, nullptr, bounds, 1, 16};
    const std::byte* from;
    std::int64_t out_offsets[2];
    SparseRun run[2];
    CHECK(within(file, guarded([&] { plan_ragged(one, &ragged, 1, &from, out_offsets); }), good, file.size));
    CHECK(within(file, guarded([&] { plan_sparse(one, &sparse, 8, run, out_offsets); }), good, file.size));
}

static void test_a_guard_in_a_guard() {
    Mapped file(2);
    file.cut(0);
    const void* inner = nullptr;
    const void* outer = guarded([&] {
        inner = guarded([&] { touch(file.bytes); });
        touch(file.bytes + kPage);
    });
    CHECK(inner == file.bytes && outer == file.bytes + kPage);
    CHECK(guarded([] {}) == nullptr);
}

static void test_threads_have_guards_of_their_own() {
    Mapped file(64);
    file.cut(kPage);
    std::vector<std::thread> threads;
    for (std::size_t t = 1; t < 9; ++t)
        threads.emplace_back([&file, t] {
            for (int round = 0; round < 200; ++round) {
                CHECK(guarded([&] { touch(file.bytes + t * kPage); }) == file.bytes + t * kPage);
                CHECK(guarded([&] { touch(file.bytes); }) == nullptr);
            }
        });
    for (auto& thread : threads) thread.join();
}

static void test_the_background_thread_can_be_told() {
    Mapped file(2);
    file.cut(0);
    std::atomic<const void*> fault{nullptr};
    Background background(4);
    const auto task = std::make_shared<Task>(1, [&](std::size_t) { fault = guarded([&] { touch(file.bytes); }); });
    background.start(task);
    while (!task->done()) std::this_thread::yield();
    CHECK(fault == file.bytes);
}

#if defined(__x86_64__)
static void test_rounding_stays() {
    Mapped file(1);
    file.cut(0);
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);  // denormals are zero, in and out, as torch.set_flush_denormal asks
    CHECK(guarded([&] { touch(file.bytes); }) == file.bytes);
    CHECK((_mm_getcsr() & 0x8040) == 0x8040);
    _mm_setcsr(before);
}
#endif

// ---- previous handlers ----------------------------------------------------------------------------------

static Mapped* cut_file() {
    auto* file = new Mapped(1);
    file->cut(0);
    return file;
}

static volatile sig_atomic_t calls = 0;

// Like the handlers of faulthandler and of torch's workers: counts, restores the previous handler, raises again.
static void note_and_raise(int signal) {
    calls = calls + 1;
    struct sigaction plain {};
    plain.sa_handler = SIG_DFL;
    sigaction(signal, &plain, nullptr);
    raise(signal);
}
static struct sigaction before_it;
static void note_restore_and_raise(int signal) {
    calls = calls + 1;
    sigaction(signal, &before_it, nullptr);
    raise(signal);
}
static void note_and_leave(int) { _Exit(40 + ++calls); }
static void note_and_return(int) { calls = calls + 1; }
static jmp_buf away;
static void note_and_jump(int, siginfo_t* info, void*) {
    calls = calls + 1;
    CHECK(info->si_code == BUS_ADRERR);
    siglongjmp(away, 1);
}

static void handle(void (*handler)(int), int flags = SA_NODEFER) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    CHECK(sigaction(SIGBUS, &action, nullptr) == 0);
}

static void wait_for_another_look() { std::this_thread::sleep_for(std::chrono::milliseconds(40)); }

static void guard_something() {
    Mapped* file = cut_file();
    CHECK(guarded([&] { touch(file->bytes); }) == file->bytes);
    CHECK(calls == 0);
}

static void nobody_had_it() {
    guard_something();
    touch(cut_file()->bytes);
}
static void sent_from_outside() {
    guard_something();
    kill(getpid(), SIGBUS);
    pause();
}
static void sent_within_a_kernel() {
    guarded([] { raise(SIGBUS); });
}
static void somebody_had_it() {
    handle(note_and_leave);
    guard_something();
    touch(cut_file()->bytes);
}
static void ignored_before() {
    handle(SIG_IGN);
    guard_something();
    raise(SIGBUS);  // as before: nothing happens
    touch(cut_file()->bytes);
}
static void it_cleans_up_and_raises() {
    handle(note_and_raise);
    guard_something();
    touch(cut_file()->bytes);
}
static void somebody_takes_it_later() {
    guard_something();
    CHECK(sigaction(SIGBUS, nullptr, &before_it) == 0);
    handle(note_restore_and_raise);
    wait_for_another_look();
    guard_something();
    touch(cut_file()->bytes);  // theirs raises it again, and again gets it: must end
}
static void it_comes_back_for_ever() {
    handle(note_and_return);
    guard_something();
    touch(cut_file()->bytes);
}
static void it_jumps_too() {
    struct sigaction action {};
    action.sa_sigaction = note_and_jump;
    action.sa_flags = SA_NODEFER | SA_SIGINFO;
    CHECK(sigaction(SIGBUS, &action, nullptr) == 0);
    guard_something();
    Mapped* file = cut_file();
    for (int round = 1; round < 4; ++round) {
        if (sigsetjmp(away, 0) == 0) touch(file->bytes);
        CHECK(calls == round);
        CHECK(guarded([&] { touch(file->bytes); }) == file->bytes);
    }
    _Exit(43);
}
static void a_child_is_guarded() {
    guard_something();
    if (fork() == 0) {
        guard_something();
        _Exit(0);
    }
    int status;
    wait(&status);
    _Exit(WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 44 : 1);
}

// Runs a case in a process. Returns its exit status, or minus the signal.
static int end_of(void (*body)()) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        const rlimit no_core{0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        alarm(60);
        body();
        _Exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void in_its_own(void (*body)()) { CHECK(end_of(body) == 0); }

int main() {
    // The sanitizers have a handler for SIGBUS, which reports and exits, and would be the handler before ours.
    handle(SIG_DFL, 0);
    const int killed = -SIGBUS;
    CHECK(end_of(nobody_had_it) == killed);
    CHECK(end_of(sent_from_outside) == killed);
    CHECK(end_of(sent_within_a_kernel) == killed);
    CHECK(end_of(somebody_had_it) == 41);
    CHECK(end_of(ignored_before) == killed);
    CHECK(end_of(it_cleans_up_and_raises) == killed);
    CHECK(end_of(somebody_takes_it_later) == killed);
    CHECK(end_of(it_comes_back_for_ever) == killed);
    CHECK(end_of(it_jumps_too) == 43);
    CHECK(end_of(a_child_is_guarded) == 44);
    in_its_own(test_reads_of_what_is_there);
    in_its_own(test_every_kernel_ends);
    in_its_own(test_a_guard_in_a_guard);
    in_its_own(test_threads_have_guards_of_their_own);
    in_its_own(test_the_background_thread_can_be_told);
#if defined(__x86_64__)
    in_its_own(test_rounding_stays);
#endif
    std::puts("guard: ok");
    return 0;
}
