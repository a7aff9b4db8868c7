// SPDX-License-Identifier: Apache-2.0
// TFRecord files of tf.train.Example and tf.train.SequenceExample: an indexer that walks the records, and a parser that
// turns the messages in them into columns. A record has its length (u64), a checksum of the length, the message, and a
// checksum of the message, all little-endian. rows.h has the columns and errors.
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
constexpr std::uint64_t kMaxRecord = 0xFFFFFFFFu - kRecordFrame;  // bytes of a message, as entries have 32 bits

// The CRC-32C of n bytes in the form of these files: rotated right by 15 bits, plus a constant. O(n).
std::uint32_t masked_crc32c(const std::uint8_t* data, std::size_t n);

// The feature that gives a stream its values.
struct ExampleSource {
    std::string name;      // of the feature
    bool list;             // whether it is a feature list of a SequenceExample, whose steps are samples
    bool optional;         // whether a record without it gets `fallback`, instead of being bad
    std::string fallback;  // the bytes of a sample; empty for a ragged stream, which gets no samples
};

// A feature of a message.
struct FeatureInfo {
    std::string name;
    bool list;
    int kind;             // 0: none, 1: bytes, 2: floats, 3: integers; -1: steps differ
    std::uint64_t steps;  // of a list, else 1
    std::uint64_t min_values, max_values;  // of a step
};

// Parses records, by the rules of protobuf. Of two entries of a map with one key the last one counts. A message in
// several pieces is merged, and of a oneof the last kind counts. Numbers may be packed or not. Unknown fields, groups
// among them, are skipped, and so are features without a stream. Immutable, for any number of threads. Throws
// bad_alloc. O(bytes + output).
class ExampleParser {
public:
    ExampleParser(std::vector<RowField> fields, std::vector<ExampleSource> sources, std::uint64_t memory_limit);
    ExampleParser(const ExampleParser&) = delete;  // names are views of sources
    ExampleParser& operator=(const ExampleParser&) = delete;

    // Each row is a record. Reads no bytes outside the rows.
    RowColumns parse(const Rows& records) const { return parse(records, {}); }
    // The same, but byte strings and texts, if there is one per record and no fallback, are not copied. Their columns
    // have no bounds, and their values are the begin and end of each in records.text, int64.
    RowColumns view(const Rows& records) const { return parse(records, views_); }
    // The number of samples of one record in stream `size_stream`, or if that is -1 in the longest. 0 for a bad record.
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
    std::vector<std::uint8_t> views_;  // by field: whether `view` does not copy its strings
    Names names_[2];  // of features, of feature lists
    std::uint64_t memory_limit_;
};

// Appends the features of a message, without its frame, in ascending order of names. Returns false if it is no such
// message. Throws bad_alloc. O(n).
bool list_features(const std::uint8_t* message, std::size_t n, std::vector<FeatureInfo>& features);

// Finds the records of a file that is fed in blocks that may be cut anywhere. The key of an entry is the number of the
// record, from 0, its offset and size are for the whole record. The last entry may be of a bad record, with the size of
// its head: if the checksum of a length differs, no record after it can be found, and the file may end within a record.
// Not for several threads at once. Throws bad_alloc. O(1) memory, or a record's if samples are counted.
class RecordIndexer {
public:
    // `parser`, if any, counts the samples of records, see ExampleParser::samples.
    RecordIndexer(std::shared_ptr<const ExampleParser> parser, int size_stream);

    // Appends the entries (CtfEntry) of the records that this block, or the end of the file, completes.
    void feed(const std::uint8_t* block, std::size_t n, CtfBytes& entries);
    void finish(CtfBytes& entries);

    // Set only if the file does not begin with a record.
    RowError error() const { return error_; }
    std::uint64_t error_byte() const { return 0; }
    std::uint64_t bytes() const { return bytes_; }
    std::uint64_t lines() const { return number_; }

private:
    void head(CtfBytes& entries);
    void emit(std::uint64_t size, std::uint32_t samples, CtfBytes& entries);

    std::shared_ptr<const ExampleParser> parser_;
    int size_stream_;
    std::vector<std::uint8_t> carry_;  // the record's head, or all of its bytes if samples are counted
    std::uint64_t bytes_ = 0;         // fed
    std::uint64_t number_ = 0;        // of records that have ended
    std::uint64_t begin_ = 0;         // of the record
    std::uint64_t size_ = 0;          // of its message
    std::uint64_t remaining_ = 0;     // bytes of it and its checksum; 0: its head is being read
    bool emitted_ = false;            // whether its entry is written already
    bool ended_ = false;              // whether no more records can be found
    RowError error_ = RowError::none;
};

}  // namespace feedline
