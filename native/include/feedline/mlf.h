// SPDX-License-Identifier: Apache-2.0
// HTK master label files (MLF): where the utterances of a text lie, and their labels as runs of frames.
//
//   #!MLF!#
//   "*/name.lab"
//   0 100000 sil[2] -0.78
//   100000 5500000 sil[3] -0.12
//   .
//
// Words are separated by single blanks. Times are units of 100 ns if an interval is at least 99,999 long (one frame is
// 100,000 of them, rounded), else numbers of frames; line by line. An utterance is as long as the end of its last line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace feedline {

// The key that names are joined by: without `*/` in front, and without what follows the last dot.
std::uint64_t name_key(std::string_view name);

enum class MlfError : int {
    none = 0,
    no_header,       // the first line is not #!MLF!#
    no_name,         // a line that is neither a name in quotes nor the header, outside an utterance
    cut,             // the text ends within an utterance
    too_few_words,   // a line has fewer than 3 words, or without states other than 4
    bad_time,        // a time that is no number from 0 to 2**31 - 1 frames
    not_contiguous,  // an interval does not begin where the last one ended, the first not at 0, or ends before
    no_lines,        // an utterance without a line
    unknown_state,
    bad_class,       // a class that is no number, or too large
    too_long,        // an utterance of 4 GiB of text
};

struct MlfEntry {
    std::uint64_t key, offset;  // of the line with the name
    std::uint32_t size, samples;  // bytes up to the end of the line with the dot; frames, 0 for an invalid utterance
};
static_assert(sizeof(MlfEntry) == 24, "entries are those of index files");

// Finds the utterances of a text that is fed block by block. Not for several threads at once.
class MlfIndexer {
public:
    // Whether utterances whose intervals are not contiguous, which CNTK calls invalid, are left out.
    explicit MlfIndexer(bool drop_invalid) : drop_invalid_(drop_invalid) {}

    void feed(const std::uint8_t* block, std::size_t n, std::vector<MlfEntry>& out);
    void finish(std::vector<MlfEntry>& out);

    // Where the text cannot be indexed; nothing is found from there on.
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
    std::int64_t byte;  // from the text's start
    std::int64_t sequence;
    std::int32_t code;  // MlfError
    std::int32_t zero = 0;
};
static_assert(sizeof(MlfFault) == 24, "faults are handed out as records");

struct MlfRuns {
    std::vector<std::int64_t> offsets;  // of each utterance's runs, n + 1; a faulty one has none
    std::vector<std::uint32_t> frames, classes;
    std::vector<MlfFault> faults;  // ascending by utterance
};

// Parses utterances that an indexer has found. Immutable, for any number of threads.
class MlfParser {
public:
    // `states` are names by class; without (`mapped` false), the fourth word of a line is the class. `classes` bounds them.
    MlfParser(std::vector<std::string> states, bool mapped, std::uint32_t classes);

    // Utterance i is text[begin[i] .. begin[i] + size[i]). O(bytes).
    MlfRuns parse(const std::uint8_t* text, const std::int64_t* begin, const std::uint32_t* size, std::size_t n) const;

private:
    MlfError utterance(std::string_view text, MlfRuns& runs, std::size_t& at) const;

    std::vector<std::string> names_;
    std::unordered_map<std::string_view, std::uint32_t> states_;
    bool mapped_;
    std::uint32_t classes_;
};

}  // namespace feedline
