#include "feedline/background.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace feedline {

constexpr std::size_t kCapacity = 16;  // for the process: several sources with a few tasks each

Task::Task(std::size_t parts, std::function<void(std::size_t)> part)
    : parts_(parts), part_(std::move(part)), pid_(getpid()) {}

void Task::take_parts() {
    for (;;) {
        const std::size_t k = next_.fetch_add(1, std::memory_order_relaxed);
        if (k >= parts_) return;
        part_(k);
        completed_.fetch_add(1, std::memory_order_acq_rel);
    }
}

bool Task::made_before_fork() const { return pid_ != getpid(); }

Background::Background(std::size_t capacity) : capacity_(capacity) {}

Background::~Background() {
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
        for (const auto& task : queue_) task->next_.store(task->parts_, std::memory_order_relaxed);
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
}

Background& Background::of_this_process() {
    struct Owned {
        pid_t pid;
        Background background{kCapacity};
    };
    static std::atomic<Owned*> current{nullptr};
    Owned* owned = current.load(std::memory_order_acquire);
    while (owned == nullptr || owned->pid != getpid()) {
        // The parent's is left alone: its locks may be held by threads that do not exist here.
        Owned* fresh = new Owned{getpid()};
        if (current.compare_exchange_strong(owned, fresh, std::memory_order_acq_rel)) return fresh->background;
        delete fresh;
    }
    return owned->background;
}

void Background::start(std::shared_ptr<Task> task) {
    if (task->parts_ == 0) return;
    bool wake;
    {
        const std::lock_guard lock(mutex_);
        // Remove tasks that were finished elsewhere, without waiting for the thread.
        while (!queue_.empty() && queue_.front()->taken()) queue_.pop_front();
        if (queue_.size() >= capacity_) return;
        if (!thread_.joinable()) start_thread();
        if (!thread_.joinable()) return;
        queue_.push_back(std::move(task));
        wake = std::exchange(asleep_, false);
    }
    if (wake) wake_.notify_one();
}

bool Background::finish(Task& task, std::chrono::milliseconds limit) {
    if (task.done()) return true;
    if (task.made_before_fork()) {
        for (std::size_t k = 0; k < task.parts_; ++k) task.part_(k);
        task.next_.store(task.parts_, std::memory_order_relaxed);
        task.completed_.store(task.parts_, std::memory_order_release);
        return true;
    }
    task.take_parts();
    std::unique_lock lock(mutex_);
    if (task.done()) {
        if (waiting_ != 0) progress_.notify_all();
        return true;
    }
    ++waiting_;
    const bool done = progress_.wait_for(lock, limit, [&] { return task.done(); });
    --waiting_;
    return done;
}

void Background::abandon(Task& task) {
    if (task.done() || task.made_before_fork()) return;
    const std::size_t taken =
        std::min(task.next_.exchange(task.parts_, std::memory_order_relaxed), task.parts_);
    const auto all_completed = [&] { return task.completed_.load(std::memory_order_acquire) == taken; };
    if (all_completed()) return;
    std::unique_lock lock(mutex_);
    ++waiting_;
    progress_.wait(lock, all_completed);
    --waiting_;
}

void Background::start_thread() {
    // Called with the lock. A signal taken by this thread would not interrupt the call of another thread that waits for
    // it. Faults are the thread's own, though: if blocked, they would end the process, where `guarded` returns them.
    sigset_t all, before;
    sigfillset(&all);
    for (const int fault : {SIGBUS, SIGSEGV, SIGFPE, SIGILL}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        thread_ = std::thread([this] { run(); });
    } catch (const std::system_error&) {
        // No thread is available, so `finish` does the tasks.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Background::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        while (queue_.empty() && !ending_) {
            asleep_ = true;
            wake_.wait(lock);
            asleep_ = false;
        }
        if (ending_) return;
        std::shared_ptr<Task> task = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        task->take_parts();
        task.reset();
        lock.lock();
        // Waiters check under this lock before they sleep, so no completion is missed.
        if (waiting_ != 0) progress_.notify_all();
    }
}

}  // namespace feedline
