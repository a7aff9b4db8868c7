// SPDX-License-Identifier: Apache-2.0
// Work done ahead of need by one thread of the process, which knows no interpreter.
//
// A task is a row of parts. The background thread takes them one after the other; whoever needs the result
// calls `finish`, which takes the parts that are left and then waits for the one in the thread's hands. So a
// thread that never comes to run (a busy machine, no thread to be had, a full queue) costs nothing but the work
// itself, and nobody waits for a wake-up that the work would have outrun.
//
// A forked child has no background thread of its parent: a task made before the fork is done again from its
// first part by whoever finishes it there, and the parent's locks are never touched.
//
// Cost: making a task known takes two locks nobody else wants and, if the thread sleeps, one wake-up (a few
// microseconds); a part costs two atomic additions.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace feedline {

class Task {
public:
    // part(k) does part k of `parts`, each once, on any thread; it must not throw. What it writes must stay
    // valid until the task is done or abandoned, what it owns goes with the last reference to the task.
    Task(std::size_t parts, std::function<void(std::size_t)> part);

    bool done() const { return completed_.load(std::memory_order_acquire) == parts_; }

private:
    friend class Background;
    void take_parts();
    bool taken() const { return next_.load(std::memory_order_relaxed) >= parts_; }
    bool of_a_parent() const;

    const std::size_t parts_;
    const std::function<void(std::size_t)> part_;
    const pid_t pid_;
    std::atomic<std::size_t> next_{0};       // the first part nobody has taken; beyond parts_ when none is left
    std::atomic<std::size_t> completed_{0};  // parts done
};

class Background {
public:
    // capacity: tasks that may wait for the thread; further ones are left to `finish`. The thread starts with
    // the first task and takes no signals: those belong to the threads that were there before.
    explicit Background(std::size_t capacity);
    // Ends the thread after the part it is doing. No task may be in use any more.
    ~Background();
    Background(const Background&) = delete;
    Background& operator=(const Background&) = delete;

    // Of this process; made at the first call and never destroyed, since its thread may outlive main().
    static Background& of_this_process();

    // Lets the thread begin; never waits for it.
    void start(std::shared_ptr<Task> task);
    // Does what is left of the task and waits for the rest, but no longer than `limit` for that; true when the
    // task is done. Any number of threads may finish one task (a task of a parent process: one thread).
    bool finish(Task& task, std::chrono::milliseconds limit);
    // Gives the task up: when this returns, nobody works on it and what it writes may go. Waits for the part in
    // hand at most. Not while another thread finishes the task.
    void abandon(Task& task);

private:
    void run();
    void start_thread();

    const std::size_t capacity_;
    std::mutex mutex_;  // guards all below
    std::condition_variable wake_, progress_;
    std::deque<std::shared_ptr<Task>> queue_;
    std::size_t waiting_ = 0;  // threads in finish() or abandon()
    bool asleep_ = false, ending_ = false;
    std::thread thread_;
};

}  // namespace feedline
