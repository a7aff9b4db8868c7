// SPDX-License-Identifier: Apache-2.0
// Mappings of shared memory, and loans of them that return the memory when they end.
//
// Both are freed by reference count alone. A loan refers to the two mappings that it needs, so owners may be destroyed
// in any order. The end of a loan is one store, with no lock and no system call, so it may happen on any thread and
// inside any other code.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace feedline {

// A mapping of shared memory, readable and writable. Unmapped with the last reference.
class SharedMemory {
public:
    // Maps `size` bytes of the descriptor `fd`, which may be closed afterwards. On Linux the pages are already present,
    // except with `copy_on_write`: then what is written to it stays in this mapping. Throws std::system_error.
    static std::shared_ptr<SharedMemory> map(int fd, std::size_t size, bool copy_on_write = false);
    ~SharedMemory();
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;

    std::byte* data() const { return data_; }
    std::size_t size() const { return size_; }

private:
    SharedMemory(std::byte* data, std::size_t size) : data_(data), size_(size) {}

    std::byte* data_;
    std::size_t size_;
};

// Memory lent by another process. When a loan that has begun ends, byte `at` of `table` becomes `free`, or `forgotten`
// if this process was forked meanwhile, as the child may keep reading the memory. A child's copy of a loan changes
// nothing.
class Loan {
public:
    // Throws std::out_of_range if `table` has no byte `at`.
    Loan(std::shared_ptr<SharedMemory> memory, std::shared_ptr<SharedMemory> table, std::size_t at, std::uint8_t free,
         std::uint8_t forgotten);
    ~Loan();
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;

    // Begins the loan, so that its end returns the memory. Idempotent.
    void begin() { begun_ = true; }
    const SharedMemory& memory() const { return *memory_; }

    // Called in the parent before and after a fork, so that a loan begun on another thread in between is forgotten too.
    static void forking() { forks_.fetch_add(1, std::memory_order_relaxed); }

private:
    static std::atomic<std::uint64_t> forks_;

    const std::shared_ptr<SharedMemory> memory_, table_;
    const std::size_t at_;
    const std::uint8_t free_, forgotten_;
    const std::uint64_t forks_at_start_;
    const pid_t pid_;
    bool begun_ = false;
};

}  // namespace feedline
