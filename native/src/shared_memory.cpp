#include "feedline/shared_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "system.h"

namespace feedline {

std::shared_ptr<SharedMemory> SharedMemory::map(int fd, std::size_t size, bool copy_on_write) {
    // Making the pages of a private mapping present would copy each of them.
    void* const data = copy_on_write ? mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0)
                                     : map_shared(fd, size);
    if (data == MAP_FAILED) throw std::system_error(errno, std::generic_category());
    return std::shared_ptr<SharedMemory>(new SharedMemory(static_cast<std::byte*>(data), size));
}

SharedMemory::~SharedMemory() { munmap(data_, size_); }

std::atomic<std::uint64_t> Loan::forks_{0};

Loan::Loan(std::shared_ptr<SharedMemory> memory, std::shared_ptr<SharedMemory> table, std::size_t at,
           std::uint8_t free, std::uint8_t forgotten)
    : memory_(std::move(memory)),
      table_(std::move(table)),
      at_(at),
      free_(free),
      forgotten_(forgotten),
      forks_at_start_(forks_.load(std::memory_order_relaxed)),
      pid_(getpid()) {
    if (at_ >= table_->size()) throw std::out_of_range("a loan's byte is outside its table");
}

Loan::~Loan() {
    if (!begun_ || pid_ != getpid()) return;
    const bool no_fork = forks_.load(std::memory_order_relaxed) == forks_at_start_;
    // All reads must complete before the memory is used again.
    __atomic_store_n(reinterpret_cast<std::uint8_t*>(table_->data() + at_), no_fork ? free_ : forgotten_,
                     __ATOMIC_RELEASE);
}

}  // namespace feedline
