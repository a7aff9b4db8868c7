// SPDX-License-Identifier: Apache-2.0
// The calls to the operating system that POSIX does not have, or that not every system has.
//
// system_linux.cpp is compiled on Linux. system_portable.cpp is compiled elsewhere, and on Linux with
// -DFEEDLINE_PORTABLE=ON. Values and errors are the same with both: the portable calls give less advice, and know less
// of the page cache.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace feedline {

// Maps `size` bytes of `fd`, readable and writable, for all processes that map it. Linux makes the pages present.
// Returns MAP_FAILED with errno.
void* map_shared(int fd, std::size_t size);

// Asks for huge pages. `memory` and `bytes` are multiples of the page size. Errors are ignored.
void advise_huge_pages(void* memory, std::size_t bytes);

// Tells the page cache that reads of `fd` are explicit, so that it reads nothing ahead. Errors are ignored.
void expect_random_reads(int fd);

// Makes the page cache begin to read `bytes` bytes from `offset` on. Never waits. Errors are ignored.
void begin_reading(int fd, std::uint64_t offset, std::uint64_t bytes);

// Lets the page cache drop these bytes, unless they are mapped or dirty. Errors are ignored.
void drop_cached(int fd, std::uint64_t offset, std::uint64_t bytes);

// The flag of open() for reads that bypass the page cache. 0: there is none.
int direct_flag();

// Whether `find_cached` is truthful for this file, whose state is `about`.
bool reports_cached(const std::string& path, const struct stat& about);

// Sets the lowest bit of pages[i] if the page cache has page i of the mapped `bytes` bytes at `mapped`. Pages have the
// system's size. Returns false, with `pages` undefined, if that is unknown.
bool find_cached(const std::byte* mapped, std::size_t bytes, unsigned char* pages);

// Whether the byte at `offset` can be read without waiting for the disk, or that is unknown.
bool can_read_now(int fd, std::uint64_t offset);

// Whether the processor is an aarch64 with instructions for crc32c, which its first version did not ask for.
bool has_crc32_instructions();

// Milliseconds of a clock that only goes forward, in steps of at most 10 ms.
std::int64_t coarse_milliseconds();

}  // namespace feedline
