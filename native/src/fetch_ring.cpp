#include "fetch_ring.h"

#if defined(FEEDLINE_LINUX) && __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#ifdef IORING_FEAT_RW_CUR_POS  // headers of 5.6, which have IORING_OP_READ
#define FEEDLINE_RING 1
#endif
#endif

#ifdef FEEDLINE_RING
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

// One number on every architecture; older C libraries do not know them.
#ifndef __NR_io_uring_setup
#define __NR_io_uring_setup 425
#define __NR_io_uring_enter 426
#define __NR_io_uring_register 427
#endif

namespace feedline {

static bool can_read(int ring) {
    alignas(io_uring_probe) unsigned char memory[sizeof(io_uring_probe) + 256 * sizeof(io_uring_probe_op)] = {};
    auto* probe = reinterpret_cast<io_uring_probe*>(memory);
    if (syscall(__NR_io_uring_register, ring, IORING_REGISTER_PROBE, probe, 256) != 0) return false;
    return probe->last_op >= IORING_OP_READ && (probe->ops[IORING_OP_READ].flags & IO_URING_OP_SUPPORTED) != 0;
}

std::unique_ptr<Ring> Ring::open(unsigned depth) {
    io_uring_params params{};
    long fd = -1;
#ifdef IORING_SETUP_COOP_TASKRUN
    // Completed reads do not interrupt the thread: it sees them when it waits. Since 5.19.
    params.flags = IORING_SETUP_COOP_TASKRUN;
    fd = syscall(__NR_io_uring_setup, depth, &params);
#endif
    if (fd < 0) {
        params = {};
        fd = syscall(__NR_io_uring_setup, depth, &params);
    }
    if (fd < 0) return nullptr;
    std::unique_ptr<Ring> ring(new Ring);
    ring->fd_ = static_cast<int>(fd);
    if ((params.features & IORING_FEAT_SINGLE_MMAP) == 0 || (params.features & IORING_FEAT_NODROP) == 0 ||
        !can_read(ring->fd_))
        return nullptr;
    const auto map = [&](std::size_t bytes, off_t what) -> void* {
        void* memory =
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd_, what);
        if (memory == MAP_FAILED) return nullptr;
        madvise(memory, bytes, MADV_DONTFORK);  // of no use to a child
        return memory;
    };
    const std::size_t sq_bytes = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    const std::size_t cq_bytes = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
    ring->rings_bytes_ = sq_bytes > cq_bytes ? sq_bytes : cq_bytes;
    ring->rings_ = map(ring->rings_bytes_, IORING_OFF_SQ_RING);
    ring->entries_bytes_ = params.sq_entries * sizeof(io_uring_sqe);
    ring->entries_ = map(ring->entries_bytes_, IORING_OFF_SQES);
    if (ring->rings_ == nullptr || ring->entries_ == nullptr) return nullptr;
    auto* base = static_cast<unsigned char*>(ring->rings_);
    const auto word = [&](unsigned offset) { return reinterpret_cast<unsigned*>(base + offset); };
    ring->sq_head_ = word(params.sq_off.head);
    ring->sq_tail_ = word(params.sq_off.tail);
    ring->sq_array_ = word(params.sq_off.array);
    ring->sq_mask_ = *word(params.sq_off.ring_mask);
    ring->cq_head_ = word(params.cq_off.head);
    ring->cq_tail_ = word(params.cq_off.tail);
    ring->cq_mask_ = *word(params.cq_off.ring_mask);
    ring->cqes_ = base + params.cq_off.cqes;
    ring->depth_ = depth < params.sq_entries ? depth : params.sq_entries;
    return ring;
}

Ring::~Ring() {
    if (rings_ != nullptr) munmap(rings_, rings_bytes_);
    if (entries_ != nullptr) munmap(entries_, entries_bytes_);
    if (fd_ >= 0) close(fd_);
}

void Ring::prepare(int fd, std::byte* to, unsigned size, std::uint64_t offset, std::uint64_t tag) {
    const unsigned tail = *sq_tail_, at = tail & sq_mask_;  // only this thread writes the tail
    io_uring_sqe& entry = static_cast<io_uring_sqe*>(entries_)[at];
    std::memset(&entry, 0, sizeof entry);
    entry.opcode = IORING_OP_READ;
    entry.fd = fd;
    entry.off = offset;
    entry.addr = reinterpret_cast<std::uintptr_t>(to);
    entry.len = size;
    entry.user_data = tag;
    sq_array_[at] = at;
    __atomic_store_n(sq_tail_, tail + 1, __ATOMIC_RELEASE);
}

int Ring::submit(unsigned wait) {
    const unsigned ready = *sq_tail_ - __atomic_load_n(sq_head_, __ATOMIC_ACQUIRE);
    const long done = syscall(__NR_io_uring_enter, fd_, ready, wait, wait != 0 ? IORING_ENTER_GETEVENTS : 0u,
                              nullptr, std::size_t{0});
    return done < 0 ? errno : 0;
}

bool Ring::reap(std::uint64_t& tag, std::int64_t& got) {
    const unsigned head = *cq_head_;
    if (head == __atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE)) return false;
    const io_uring_cqe& entry = static_cast<io_uring_cqe*>(cqes_)[head & cq_mask_];
    tag = entry.user_data;
    got = entry.res;
    __atomic_store_n(cq_head_, head + 1, __ATOMIC_RELEASE);
    return true;
}

}  // namespace feedline

#else

namespace feedline {

std::unique_ptr<Ring> Ring::open(unsigned) { return nullptr; }
Ring::~Ring() = default;
void Ring::prepare(int, std::byte*, unsigned, std::uint64_t, std::uint64_t) {}
int Ring::submit(unsigned) { return 0; }
bool Ring::reap(std::uint64_t&, std::int64_t&) { return false; }

}  // namespace feedline

#endif
