// SPDX-License-Identifier: Apache-2.0
// TFRecord files of tf.train.Example and tf.train.SequenceExample: an indexer that walks the records, and a parser that
// turns the messages in them into columns. A record is its length (u64), a checksum of the length, the message, and a
// checksum of the message; all little endian. See rows.h for columns and errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "feedline/rows.h"

namespace feedline {

constexpr std::size_t kRecordHead = 12;   // bytes before the message
constexpr std::size_t kRecordFrame = 16;  // bytes around it
constexpr std::uint64_t kMostRecord = 0xFFFFFFFFu - kRecordFrame;  // bytes of a message; entries hold 32 bits

// The CRC-32C of n bytes as the files hold it: rotated right by 15 bits, plus a constant. O(n).
std::uint32_t masked_crc32c(const std::uint8_t* data, std::size_t n);

// Where a stream's values are.
struct ExampleSource {
    std::string name;      // of the feature
    bool list;             // among the feature lists of a SequenceExample, each step a sample; else among its features
    bool optional;         // a record without it has `fallback`, where it would be bad otherwise
    std::string fallback;  // the bytes of a sample; of a ragged stream nothing, as it has no samples then
};

// What a message has under a name.
struct FeatureInfo {
    std::string name;
    bool list;
    int kind;            // 0: none, 1: bytes, 2: floats, 3: integers; -1: steps differ
    std::uint64_t steps;  // of a list, else 1
    std::uint64_t least, most;  // values of a step
};

// Parses records. Follows protobuf: of two entries of a map with one key the last one counts; a message that comes in
// several pieces is merged, and of a oneof the last kind counts; numbers may be packed or not; unknown fields, groups
// among them, are skipped. What no stream reads is skipped whole. Immutable, for any number of threads. O(bytes + output).
class ExampleParser {
public:
    ExampleParser(std::vector<RowField> fields, std::vector<ExampleSource> sources, std::uint64_t memory_limit);
    ExampleParser(const ExampleParser&) = delete;  // names are views of sources
    ExampleParser& operator=(const ExampleParser&) = delete;

    // Each row is a record. Nothing outside of the rows is read.
    RowColumns parse(const Rows& records) const { return parse(records, {}); }
    // The same, but byte strings and texts, one a record and without a fallback, stay where they are: their columns have
    // no bounds, and as values begin and end of each in records.text, int64.
    RowColumns view(const Rows& records) const { return parse(records, views_); }
    // Samples of one record: those of stream `size_stream`, if that is >= 0, else of the longest; 0 for a bad one.
    std::uint32_t samples(const std::uint8_t* record, std::size_t bytes, int size_stream) const;

    const std::vector<RowField>& fields() const { return fields_; }
    std::uint64_t memory_limit() const { return memory_limit_; }

    struct Names {
        std::unordered_map<std::string_view, int> streams;
        int find(std::string_view name) const;
    };

private:
    RowColumns parse(const Rows& records, const std::vector<std::uint8_t>& views) const;

    std::vector<RowField> fields_;
    std::vector<ExampleSource> sources_;
    std::vector<std::uint8_t> views_;  // by field: whether `view` leaves its strings where they are
    Names names_[2];  // of features, of feature lists
    std::uint64_t memory_limit_;
};

// What a message (without its frame) has, by names in ascending order. False: it is no such message.
bool list_features(const std::uint8_t* message, std::size_t n, std::vector<FeatureInfo>& found);

// Finds the records of a file fed in blocks that may be cut anywhere, as CtfEntry: key is the number of the record, from
// 0; offset and size are those of the whole record. The last entry may be a bad one, of which only the head is in its
// size: where a length has another checksum, nothing behind it can be found, and the file may end within a record.
// Holds O(1) memory, or a record if samples are counted.
class RecordIndexer {
public:
    // `parser`, if any, counts the samples of records, see ExampleParser::samples.
    RecordIndexer(std::shared_ptr<const ExampleParser> parser, int size_stream);

    void feed(const std::uint8_t* block, std::size_t n, CtfBytes& entries);
    void finish(CtfBytes& entries);

    // Only of a file that does not begin with a record.
    RowError error() const { return error_; }
    std::uint64_t error_byte() const { return 0; }
    std::uint64_t bytes() const { return bytes_; }
    std::uint64_t lines() const { return number_; }

private:
    void head(CtfBytes& entries);
    void emit(std::uint64_t size, std::uint32_t samples, CtfBytes& entries);

    std::shared_ptr<const ExampleParser> parser_;
    int size_stream_;
    std::vector<std::uint8_t> held_;  // of the record: its head, or all of it to count samples
    std::uint64_t bytes_ = 0;         // fed
    std::uint64_t number_ = 0;        // of records that have ended
    std::uint64_t begin_ = 0;         // of the record
    std::uint64_t size_ = 0;          // of its message
    std::uint64_t left_ = 0;          // of it and its checksum; 0: its head is being read
    bool told_ = false;               // whether its entry is written already
    bool ended_ = false;              // nothing behind can be found
    RowError error_ = RowError::none;
};

}  // namespace feedline
