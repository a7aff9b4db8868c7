// SPDX-License-Identifier: Apache-2.0
// Memory of minibatches and of decoded chunks, which is used again once nothing refers to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace feedline {

// Smaller arrays are left to the allocator, which reuses their memory by itself.
constexpr std::size_t kMinRecycledBytes = std::size_t{64} << 10;

// Pieces of memory that begin at a page and have undefined content. A new piece costs a page fault for each of its
// pages, a recycled one costs nothing.
//
// Unused pieces are freed, the longest unused ones first, if all pieces together exceed the most bytes that were in use
// at once lately, or if the unused ones exceed both of two limits. Safe for threads, and after a fork.
class RecycledMemory {
public:
    struct Limits {
        std::size_t unused_bytes;
        std::size_t unused_pieces;  // times the bytes of the latest piece
    };
    struct Piece {
        std::byte* begin;
        std::size_t bytes;    // at least the bytes asked for
        std::uint64_t epoch;  // of the call of take()
    };
    struct Usage {
        std::size_t in_use, unused;  // bytes
    };

    explicit RecycledMemory(Limits limits = {std::size_t{64} << 20, 4}) : limits_(limits) {}
    ~RecycledMemory() { release(); }
    RecycledMemory(const RecycledMemory&) = delete;
    RecycledMemory& operator=(const RecycledMemory&) = delete;

    // The ones that all minibatches, and all decoded chunks, of this process share. Never destroyed, as pieces may be
    // given back at exit.
    static RecycledMemory& of_minibatches();
    static RecycledMemory& of_chunks();

    // Returns a piece that nobody else has. Throws std::bad_alloc. O(unused pieces).
    Piece take(std::size_t bytes);

    // Takes a piece back, which nobody may use any more.
    void give_back(const Piece& piece) noexcept;

    // Frees all unused pieces now, and the pieces in use when they are given back.
    void release() noexcept;

    Usage usage();

private:
    struct Shared;

    // Both are called with the lock. `latest`: bytes of the latest piece.
    void limit(std::size_t latest) noexcept;
    void free_unused(std::size_t most) noexcept;

    const Limits limits_;
    std::mutex mutex_;
    std::vector<Piece> unused_;  // the longest unused one first
    std::size_t pieces_in_use_ = 0, in_use_ = 0, unused_bytes_ = 0;
    std::size_t most_ = 0, most_before_ = 0;  // bytes in use at once, in this span of calls and the one before
    std::uint64_t takes_ = 0, epoch_ = 0;
};

}  // namespace feedline
