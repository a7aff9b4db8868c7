// SPDX-License-Identifier: Apache-2.0
// Bytes of an archive at any place: of an open file, to index it, and of a map, to read it.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "feedline/guard.h"
#include "feedline/reach.h"

namespace feedline {

enum class ReadStatus { ok, cut, lost };

// Bytes of an open file.
struct FileBytes {
    int descriptor;
    std::uint64_t size;
    const Reach& reach;
    std::pair<std::uint64_t, std::uint64_t>& readable;
    int error = 0;

    ReadStatus get(std::uint64_t at, void* into, std::size_t n) {
        if (at > size || n > size - at) return ReadStatus::cut;
        if (reach && (at < readable.first || at + n > readable.second)) readable = reach(at, at + n);
        auto* to = static_cast<char*>(into);
        while (n != 0) {
            const ssize_t got = pread(descriptor, to, n, static_cast<off_t>(at));
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) error = errno;
            if (got < 0) return ReadStatus::lost;
            if (got == 0) return ReadStatus::cut;  // the file has become shorter
            to += got;
            at += static_cast<std::uint64_t>(got);
            n -= static_cast<std::size_t>(got);
        }
        return ReadStatus::ok;
    }
};

// Bytes of a mapped file.
struct MemoryBytes {
    const std::uint8_t* memory;
    std::uint64_t size;
    const void* lost = nullptr;  // the address that could not be read

    ReadStatus get(std::uint64_t at, void* into, std::size_t n) {
        if (at > size || n > size - at) return ReadStatus::cut;
        const std::uint8_t* from = memory + at;
        lost = guarded([=] { std::memcpy(into, from, n); });
        return lost == nullptr ? ReadStatus::ok : ReadStatus::lost;
    }
};

}  // namespace feedline
