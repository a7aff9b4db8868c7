// SPDX-License-Identifier: Apache-2.0
// The kernel's io_uring, by plain system calls: reads are submitted and reaped in batches, by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace feedline {

class Ring {
public:
    // Null where the kernel has no io_uring that reads (before 5.6), or does not allow it.
    static std::unique_ptr<Ring> open(unsigned depth);
    ~Ring();
    Ring(const Ring&) = delete;
    Ring& operator=(const Ring&) = delete;

    // At most as many reads as this may be prepared and not yet reaped.
    unsigned depth() const { return depth_; }

    // Prepares a read for `submit`.
    void prepare(int fd, std::byte* to, unsigned size, std::uint64_t offset, std::uint64_t tag);
    // Submits the prepared reads and waits until `wait` reads can be reaped; 0, or an errno after which it may be
    // called again.
    int submit(unsigned wait);
    // Reaps the next completed read: its tag, and bytes or -errno. False if there is none.
    bool reap(std::uint64_t& tag, std::int64_t& got);

private:
    Ring() = default;

    int fd_ = -1;
    unsigned depth_ = 0;
    void *rings_ = nullptr, *entries_ = nullptr;
    std::size_t rings_bytes_ = 0, entries_bytes_ = 0;
    unsigned *sq_head_ = nullptr, *sq_tail_ = nullptr, *sq_array_ = nullptr, sq_mask_ = 0;
    unsigned *cq_head_ = nullptr, *cq_tail_ = nullptr, cq_mask_ = 0;
    void* cqes_ = nullptr;
};

}  // namespace feedline
