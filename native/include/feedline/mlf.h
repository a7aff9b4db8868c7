// SPDX-License-Identifier: Apache-2.0
// HTK master label files (MLF): the places of the utterances of a text, and their labels as runs of frames.
//
//   #!MLF!#
//   "*/name.lab"
//   0 100000 sil[2] -0.78
//   100000 5500000 sil[3] -0.12
//   .
//
// Words are separated by single blanks. On each line, times are units of 100 ns if the interval is at least 99,999 long
// (one frame is 100,000 of them, rounded), else numbers of frames. The end of its last line is an utterance's length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace feedline {

// The key by which names are joined: a hash of the name without a leading `*/` and without its extension. O(bytes).
std::uint64_t name_key(std::string_view name);

enum class MlfError : int {
    none = 0,
    no_header,       // the first line is not #!MLF!#
    no_name,         // a line that is neither a name in quotes nor the header, outside an utterance
    cut,             // the text ends within an utterance
    too_few_words,   // a line has fewer than 3 words; if classes are numbers, other than 4
    bad_time,        // a time is no number from 0 to 2**31 - 1 frames
    not_contiguous,  // an interval does not begin at the end of the last one, or at 0, or ends before it begins
    no_lines,        // an utterance without a line
    unknown_state,
    bad_class,       // a class is no number, or too large
    too_long,        // an utterance has 4 GiB of text
};

struct MlfEntry {
    std::uint64_t key, offset;    // name_key, and the byte at which the line with the name begins
    std::uint32_t size, samples;  // bytes up to the end of the line with the dot; frames, 0 for an invalid utterance
};
static_assert(sizeof(MlfEntry) == 24, "entries are written to index files as they are");

// Finds the utterances of a text that is fed in blocks that may be cut anywhere. Not for several threads at once.
// Throws bad_alloc. O(bytes) time, memory for a line.
class MlfIndexer {
public:
    // drop_invalid: whether to drop utterances whose intervals are not contiguous, which CNTK calls invalid.
    explicit MlfIndexer(bool drop_invalid) : drop_invalid_(drop_invalid) {}

    // Appends the entries of the utterances that this block, or the end of the text, completes.
    void feed(const std::uint8_t* block, std::size_t n, std::vector<MlfEntry>& out);
    void finish(std::vector<MlfEntry>& out);

    // Why the text cannot be indexed from `error_byte` on, if it cannot.
    MlfError error() const { return error_; }
    std::uint64_t error_byte() const { return error_byte_; }
    std::uint64_t dropped() const { return dropped_; }
    std::uint64_t bytes() const { return at_; }

private:
    void line(std::string_view text, std::uint64_t begin, std::uint64_t end, std::vector<MlfEntry>& out);

    bool drop_invalid_;
    bool header_ = false, inside_ = false;
    bool malformed_ = false, broken_ = false;  // of the utterance: unreadable lines; intervals not contiguous
    std::uint64_t key_ = 0, begin_ = 0, frames_ = 0;
    std::uint64_t at_ = 0, dropped_ = 0, error_byte_ = 0;
    MlfError error_ = MlfError::none;
    std::string carry_;
};

struct MlfFault {
    std::int64_t byte;      // from the text's start
    std::int64_t sequence;  // number of the utterance in the call
    std::int32_t code;  // MlfError
    std::int32_t zero = 0;
};
static_assert(sizeof(MlfFault) == 24, "faults are handed out as records");

struct MlfRuns {
    std::vector<std::int64_t> offsets;  // n + 1: where each utterance's runs begin; one with a fault has none
    std::vector<std::uint32_t> frames, classes;
    std::vector<MlfFault> faults;  // ascending by utterance
};

// Parses the utterances of an indexer's entries. Immutable, for any number of threads.
class MlfParser {
public:
    // states: names by class, if `mapped`. Otherwise the fourth word of a line is the class. Classes are below
    // `classes`.
    MlfParser(std::vector<std::string> states, bool mapped, std::uint32_t classes);

    // Parses utterances text[begin[i] .. begin[i] + size[i]), which must be inside the text. Throws bad_alloc.
    // O(bytes).
    MlfRuns parse(const std::uint8_t* text, const std::int64_t* begin, const std::uint32_t* size, std::size_t n) const;

private:
    MlfError utterance(std::string_view text, MlfRuns& runs, std::size_t& at) const;

    std::vector<std::string> names_;
    std::unordered_map<std::string_view, std::uint32_t> states_;
    bool mapped_;
    std::uint32_t classes_;
};

}  // namespace feedline
