// SPDX-License-Identifier: Apache-2.0
// Bytes that come block after block and are read forward, such as those of a compressed file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

namespace feedline {

// A function that returns the next block, valid until the next call, or null and 0 at the end. May throw.
using Blocks = std::function<std::pair<const std::uint8_t*, std::size_t>()>;

// The bytes of blocks. Each is kept from the last place that was asked for on, so memory is a block and what is read at
// once. Not for several threads at once. Throws bad_alloc, and the exceptions of the blocks.
class ByteStream {
public:
    explicit ByteStream(Blocks blocks) : blocks_(std::move(blocks)) {}

    // Takes blocks until there are `n` bytes from `at` on, and drops the bytes before `at`, which is at or after the
    // last one. Returns the end of the bytes so far, which is less than at + n only where the stream ends.
    std::uint64_t extend(std::uint64_t at, std::uint64_t n) {
        while (!ended_ && total_ < at + n) {
            drop_before(at);
            const auto [from, size] = blocks_();
            ended_ = from == nullptr;
            const std::uint64_t skip = at > total_ ? at - total_ : 0;
            if (skip < size) kept_.insert(kept_.end(), from + skip, from + size);
            total_ += size;
        }
        return total_;
    }

    // Copies bytes that `extend` has made available. Returns false if there are fewer.
    bool copy(std::uint64_t at, void* into, std::size_t n) const {
        const std::uint64_t first = total_ - kept_.size();
        if (at < first || at > total_ || n > total_ - at) return false;
        if (n != 0) std::memcpy(into, kept_.data() + (at - first), n);
        return true;
    }

    // The number of all bytes, or the largest number before the end was reached.
    std::uint64_t size() const { return ended_ ? total_ : std::numeric_limits<std::uint64_t>::max(); }

private:
    void drop_before(std::uint64_t at) {
        const std::uint64_t first = total_ - kept_.size();
        if (at >= total_)
            kept_.clear();
        else if (at > first)
            kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(at - first));
    }

    Blocks blocks_;
    std::vector<std::uint8_t> kept_;  // the last bytes of those so far
    std::uint64_t total_ = 0;
    bool ended_ = false;
};

}  // namespace feedline
