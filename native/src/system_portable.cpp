#include <sys/mman.h>
#include <time.h>

#include "system.h"

namespace feedline {

void* map_shared(int fd, std::size_t size) {
    return mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

void advise_huge_pages(void*, std::size_t) {}

void expect_random_reads(int) {}

void begin_reading(int, std::uint64_t, std::uint64_t) {}

void drop_cached(int, std::uint64_t, std::uint64_t) {}

int direct_flag() { return 0; }

bool reports_cached(const std::string&, const struct stat&) { return false; }

bool find_cached(const std::byte*, std::size_t, unsigned char*) { return false; }

bool can_read_now(int, std::uint64_t) { return true; }

bool has_crc32_instructions() {
#ifdef __ARM_FEATURE_CRC32  // all processors that this is compiled for
    return true;
#else
    return false;
#endif
}

std::int64_t coarse_milliseconds() {
    timespec clock;
    clock_gettime(CLOCK_MONOTONIC, &clock);
    return clock.tv_sec * std::int64_t{1000} + clock.tv_nsec / 1000000;
}

}  // namespace feedline
