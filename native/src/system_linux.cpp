#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>

#include "system.h"

namespace feedline {

void* map_shared(int fd, std::size_t size) {
    return mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
}

void advise_huge_pages(void* memory, std::size_t bytes) { static_cast<void>(madvise(memory, bytes, MADV_HUGEPAGE)); }

void expect_random_reads(int fd) { posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); }

void begin_reading(int fd, std::uint64_t offset, std::uint64_t bytes) {
    posix_fadvise(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
}

void drop_cached(int fd, std::uint64_t offset, std::uint64_t bytes) {
    posix_fadvise(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
}

int direct_flag() { return O_DIRECT; }

// For other users than those who may write to a file, the kernel reports all pages as cached.
bool reports_cached(const std::string& path, const struct stat& about) {
    constexpr uid_t kNobody = 65534;  // how a user namespace shows unknown owners
    if (about.st_uid == geteuid() || (geteuid() == 0 && about.st_uid != kNobody)) return true;
    return faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0;
}

bool find_cached(const std::byte* mapped, std::size_t bytes, unsigned char* pages) {
    return mincore(const_cast<std::byte*>(mapped), bytes, pages) == 0;
}

bool can_read_now(int fd, std::uint64_t offset) {
    std::byte byte;
    const iovec to{&byte, 1};
    return preadv2(fd, &to, 1, static_cast<off_t>(offset), RWF_NOWAIT) != -1 || errno != EAGAIN;
}

bool has_crc32_instructions() {
#ifdef __aarch64__
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#else
    return false;
#endif
}

std::int64_t coarse_milliseconds() {
    timespec clock;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &clock);
    return clock.tv_sec * std::int64_t{1000} + clock.tv_nsec / 1000000;
}

}  // namespace feedline
