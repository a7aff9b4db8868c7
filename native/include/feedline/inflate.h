// SPDX-License-Identifier: Apache-2.0
// gzip and zlib files (RFC 1952 and 1950, deflate of RFC 1951), decoded in pieces, and from points in their middle: a
// point is a place between two blocks, with the 32 KiB of text before it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

std::uint32_t crc32_update(std::uint32_t crc, const std::uint8_t* data, std::size_t n);  // of gzip, not crc32c
std::uint32_t adler32_update(std::uint32_t sum, const std::uint8_t* data, std::size_t n);  // of zlib, from 1 on

class Inflater {
public:
    static constexpr std::size_t kWindow = 32 << 10;
    static constexpr std::size_t kSlack = 264;  // the longest copy and two literals: output stops where less room is left

    enum class Status : int {
        input = 0,   // more input is needed
        output = 1,  // less than kSlack bytes of room are left
        point = 2,   // a block ended at or behind `point_after`
        end = 3,     // the input has ended where a file may end
        bad = -1,    // damaged: see `problem`
    };

    struct Result {
        Status status;
        std::size_t consumed;  // bytes of input that need not be given again
        std::size_t position;  // behind the last byte of output
        bool member;           // at a point: the next byte is a member's first one, no window is needed
    };

    // At a member's first byte; `zlib`: at the first byte of a file, which has one member.
    explicit Inflater(bool zlib = false) : zlib_(zlib) {}
    // Between two blocks: `bits` of the byte before the input, its upper ones, belong to the next block. The member's
    // checksum is then not checked.
    Inflater(unsigned bits, std::uint8_t byte, bool zlib = false);

    // Decodes in[0 .. n) into out from `position` on, up to `room`; out[0 .. position) is text before, of which up to
    // 32 KiB must be what was decoded last. `last`: the file ends with this input. Stops at the first place between
    // blocks at which the position is at least `point_after`.
    Result run(const std::uint8_t* in, std::size_t n, bool last, std::uint8_t* out, std::size_t position,
               std::size_t room, std::size_t point_after);

    unsigned bits() const { return count_; }  // at a point: see the constructor; at most 7
    std::uint8_t byte() const { return static_cast<std::uint8_t>(count_ ? hold_ << (8 - count_) : 0); }
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
    bool final_ = false, any_ = false;
    bool checked_ = true;            // whether the member's checksum is known
    std::uint64_t hold_ = 0;         // bits read and not used, lowest first
    unsigned count_ = 0;
    std::uint32_t stored_ = 0;       // bytes left of a stored block
    std::uint32_t crc_ = 0, size_ = 0;
    std::uint64_t reach_ = 0;        // bytes that distances may reach back
    const std::uint8_t* in_ = nullptr;
    const std::uint8_t* end_ = nullptr;
    Codes lengths_, distances_;
    const char* problem_ = "";
};

}  // namespace feedline
