// The background thread: parts are done once by any thread, nothing is written after a task was abandoned, full queues
// and forks lose nothing. Meant for ASan + UBSan (`make sanitize`) and for TSan.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "feedline/background.h"
#include "check.h"

using namespace feedline;
using namespace std::chrono_literals;

// How often each part was done. These are plain ints, so that the sanitizer detects a part that two threads do, or that
// is read before it is done.
struct Counted {
    explicit Counted(std::size_t parts, std::chrono::microseconds each = 0us) : counts(parts) {
        int* memory = counts.data();
        task = std::make_shared<Task>(parts, [memory, each](std::size_t k) {
            if (each.count() != 0) std::this_thread::sleep_for(each);
            ++memory[k];
        });
    }
    bool once() const {
        for (const int count : counts)
            if (count != 1) return false;
        return true;
    }
    std::vector<int> counts;
    std::shared_ptr<Task> task;
};

static void finish(Background& background, Counted& work) {
    while (!background.finish(*work.task, 1ms)) {
    }
    CHECK(work.task->done() && work.once());
}

static void test_every_part_once() {
    Background background(4);
    std::mt19937 rng(7);
    for (int round = 0; round < 300; ++round) {
        std::vector<std::unique_ptr<Counted>> tasks;
        for (int i = 0; i < 6; ++i) {  // more than the queue holds
            tasks.push_back(std::make_unique<Counted>(rng() % 20, std::chrono::microseconds(rng() % 3)));
            background.start(tasks.back()->task);
        }
        if (round % 3 == 0) std::this_thread::sleep_for(50us);
        for (auto& work : tasks) finish(background, *work);
    }
}

static void test_the_thread_does_it_alone() {
    Background background(1);
    for (int round = 0; round < 20; ++round) {
        Counted work(5);
        background.start(work.task);
        while (!work.task->done()) std::this_thread::sleep_for(10us);
        CHECK(work.once());
    }
}

static void test_two_threads_finish_one_task() {
    Background background(4);
    for (int round = 0; round < 50; ++round) {
        Counted work(9, 20us);
        background.start(work.task);
        std::thread other([&] { finish(background, work); });
        finish(background, work);
        other.join();
    }
}

static void test_abandoned_work_is_left_alone() {
    Background background(4);
    for (int round = 0; round < 300; ++round) {
        auto work = std::make_unique<Counted>(50, 5us);
        background.start(work->task);
        if (round % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(round));
        background.abandon(*work->task);
        for (const int count : work->counts) CHECK(count <= 1);
        work.reset();  // a part done from here on writes to freed memory
    }
}

static void test_waiting_has_a_limit() {
    Background background(1);
    Counted slow(1, 200ms);
    background.start(slow.task);
    std::this_thread::sleep_for(50ms);
    if (!slow.task->done()) background.finish(*slow.task, 1ms);  // true only if this thread got the part
    finish(background, slow);
}

static void test_the_end_leaves_what_waits() {
    Counted first(3, 2ms), second(3);
    {
        Background background(4);
        background.start(first.task);
        background.start(second.task);
    }
    for (const Counted* work : {&first, &second})
        for (const int count : work->counts) CHECK(count <= 1);
    Counted none(0);
    Background background(4);
    background.start(none.task);
    CHECK(none.task->done());
    finish(background, none);
}

static void test_a_child_does_it_again() {
    Background& background = Background::of_this_process();
    CHECK(&background == &Background::of_this_process());
    for (int round = 0; round < 10; ++round) {
        Counted work(20, 100us), waiting(5);
        background.start(work.task);
        background.start(waiting.task);
        std::this_thread::sleep_for(300us);
        const pid_t child = fork();
        if (child == 0) {
            alarm(20);  // a child that waits for its parent's thread is a failure, not a hang
            Background& own = Background::of_this_process();
            if (&own == &background) _exit(2);
            if (!own.finish(*work.task, 1ms) || !work.task->done()) _exit(3);
            for (const int count : work.counts)
                if (count < 1) _exit(4);
            own.abandon(*waiting.task);
            Counted fresh(5);
            own.start(fresh.task);
            while (!fresh.task->done()) std::this_thread::sleep_for(10us);  // by a thread of the child
            _exit(fresh.once() ? 0 : 5);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        finish(background, work);
        finish(background, waiting);
    }
}

int main() {
    test_every_part_once();
    test_the_thread_does_it_alone();
    test_two_threads_finish_one_task();
    test_abandoned_work_is_left_alone();
    test_waiting_has_a_limit();
    test_the_end_leaves_what_waits();
    test_a_child_does_it_again();
    std::puts("background: ok");
    return 0;
}
