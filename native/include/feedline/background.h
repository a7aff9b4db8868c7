// SPDX-License-Identifier: Apache-2.0
// Work done ahead by one thread per process, without the interpreter.
//
// A task is a series of parts. The background thread takes them one after the other. A caller that needs the result
// calls `finish`, which does the remaining parts and then waits for the part in progress. So if the background thread
// does not get to run (a busy machine, no thread available, a full queue), the caller does all the work, and no caller
// waits for a wake-up that takes longer than the work.
//
// A forked child does not have its parent's background thread. `finish` there does a task created before the fork again
// from its first part, and the parent's locks are never touched.
//
// Cost: starting a task takes two uncontended locks and, if the thread sleeps, one wake-up (a few microseconds). A part
// costs two atomic additions.
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
    // part(k) does part k of `parts`. It is called once for each k, on any thread, and must not throw. The memory that
    // it writes to must stay valid until the task is done or abandoned. Its captures are freed with the last reference
    // to the task.
    Task(std::size_t parts, std::function<void(std::size_t)> part);

    bool done() const { return completed_.load(std::memory_order_acquire) == parts_; }

private:
    friend class Background;
    void take_parts();
    bool taken() const { return next_.load(std::memory_order_relaxed) >= parts_; }
    bool made_before_fork() const;

    const std::size_t parts_;
    const std::function<void(std::size_t)> part_;
    const pid_t pid_;
    std::atomic<std::size_t> next_{0};       // the first part not taken; parts_ or more once all are taken
    std::atomic<std::size_t> completed_{0};  // parts done
};

class Background {
public:
    // capacity: tasks that may wait for the thread. Tasks beyond it are done by `finish`. The thread starts with the
    // first task and blocks signals, which are for other threads.
    explicit Background(std::size_t capacity);
    // Ends the thread after the part it is doing. No task may be in use any more.
    ~Background();
    Background(const Background&) = delete;
    Background& operator=(const Background&) = delete;

    // The instance of this process. Created in the first call and never destroyed, since its thread may outlive main().
    static Background& of_this_process();

    // Queues the task for the thread, without waiting.
    void start(std::shared_ptr<Task> task);
    // Does the remaining parts and waits up to `limit` for the part in progress. Returns whether the task is done. Any
    // number of threads may finish one task, but only one a task made before a fork.
    bool finish(Task& task, std::chrono::milliseconds limit);
    // Abandons the task: when this returns, no thread works on it and its output may be freed. Waits at most for the
    // part in progress. Must not be called while another thread finishes the task.
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
