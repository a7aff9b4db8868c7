// SPDX-License-Identifier: Apache-2.0
// Bytes of an archive: of an open file or a stream, to index it, and of a map, to read it.
//
// `end_of(at, n)` is the end of the bytes, or a place at or after at + n. Bytes before `at` are not read any more.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "feedline/byte_stream.h"
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

    std::uint64_t end_of(std::uint64_t, std::uint64_t) const { return size; }
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

// Bytes of a stream, read forward.
struct StreamBytes {
    ByteStream& stream;
    int error = 0;

    std::uint64_t end_of(std::uint64_t at, std::uint64_t n) { return stream.extend(at, n); }
    ReadStatus get(std::uint64_t at, void* into, std::size_t n) {
        return stream.copy(at, into, n) ? ReadStatus::ok : ReadStatus::cut;
    }
};

// Bytes of a mapped file.
struct MemoryBytes {
    const std::uint8_t* memory;
    std::uint64_t size;
    const void* lost = nullptr;  // the address that could not be read

    std::uint64_t end_of(std::uint64_t, std::uint64_t) const { return size; }
    ReadStatus get(std::uint64_t at, void* into, std::size_t n) {
        if (at > size || n > size - at) return ReadStatus::cut;
        const std::uint8_t* from = memory + at;
        lost = guarded([=] { std::memcpy(into, from, n); });
        return lost == nullptr ? ReadStatus::ok : ReadStatus::lost;
    }
};

}  // namespace feedline
