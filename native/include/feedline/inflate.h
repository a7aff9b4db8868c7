// SPDX-License-Identifier: Apache-2.0
// gzip and zlib files (RFC 1952 and 1950, deflate of RFC 1951), decoded in pieces, and from points in their middle. A
// point is a place between two blocks, with the 32 KiB of text before it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

// Continue the checksum of gzip, which starts from 0, and of zlib, which starts from 1, by n bytes.
std::uint32_t crc32_update(std::uint32_t crc, const std::uint8_t* data, std::size_t n);
std::uint32_t adler32_update(std::uint32_t sum, const std::uint8_t* data, std::size_t n);

// Decodes one file. Not for several threads at once.
class Inflater {
public:
    static constexpr std::size_t kWindow = 32 << 10;
    static constexpr std::size_t kSlack = 264;  // the longest copy and two literals: it stops if less room is left

    enum class Status : int {
        input = 0,   // more input is needed
        output = 1,  // less than kSlack bytes of room are left
        point = 2,   // a block has ended at `point_after` or later
        end = 3,     // the file has ended
        bad = -1,    // the file is damaged, see `problem`
    };

    struct Result {
        Status status;
        std::size_t consumed;  // bytes of input that were used; the next call continues after them
        std::size_t position;  // end of the output
        bool member;           // at a point: whether the next byte is a member's first, so that no window is needed
    };

    // Starts at a member's first byte, or with `zlib` at the first byte of a file, which has one member.
    explicit Inflater(bool zlib = false) : zlib_(zlib) {}
    // Starts between two blocks. The upper `bits` bits of `byte`, the byte before the input, belong to the next block.
    // The member's checksum is then not checked.
    Inflater(unsigned bits, std::uint8_t byte, bool zlib = false);

    // Decodes in[0 .. n) into out from `position` on, up to `room`. Up to 32 KiB before `position` must be the text
    // that was decoded last. `last`: whether the file ends with this input. Stops at the first place between blocks at
    // which the position is at least `point_after`. Never throws.
    Result run(const std::uint8_t* in, std::size_t n, bool last, std::uint8_t* out, std::size_t position,
               std::size_t room, std::size_t point_after);

    // At a point: arguments for the constructor. At most 7 bits.
    unsigned bits() const { return count_; }
    std::uint8_t byte() const { return static_cast<std::uint8_t>(count_ ? hold_ << (8 - count_) : 0); }
    // The damage, in words.
    const char* problem() const { return problem_; }

private:
    enum class Mode : std::uint8_t { header, block, stored, codes, trailer, ended };

    struct Codes {
        static constexpr unsigned kBits = 10;
        std::uint16_t fast[1 << kBits];  // symbol << 4 | length; 0: a longer code, or none
        std::uint16_t count[16], offset[16], symbol[288];
        bool make(const std::uint8_t* lengths, unsigned n, bool may_be_one);
    };

    bool bad(const char* problem) {
        problem_ = problem;
        return false;
    }
    enum class Step : std::uint8_t { done, more, bad };
    Step header(const std::uint8_t* in, std::size_t n, std::size_t& at, bool last);
    bool tables();
    int symbol(const Codes& codes);
    bool need(unsigned bits);
    std::uint32_t take(unsigned bits);
    void refill();

    Mode mode_ = Mode::header;
    bool zlib_ = false;
    bool final_ = false;  // whether the block is the member's last one
    bool any_ = false;    // whether a member has begun
    bool checked_ = true;            // whether the member's checksum is known
    std::uint64_t hold_ = 0;         // bits read and not used, lowest first
    unsigned count_ = 0;
    std::uint32_t stored_ = 0;       // remaining bytes of a stored block
    std::uint32_t crc_ = 0, size_ = 0;
    std::uint64_t reach_ = 0;        // bytes that distances may reach back
    const std::uint8_t* in_ = nullptr;
    const std::uint8_t* end_ = nullptr;
    Codes lengths_, distances_;
    const char* problem_ = "";
};

}  // namespace feedline
