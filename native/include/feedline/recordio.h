// SPDX-License-Identifier: Apache-2.0
// RecordIO files of MXNet, little-endian: the places of their records, and the labels and pictures in them.
//
// A record is one part or several. A part has a magic number, a word with its kind (3 bits: 0 all, 1 first, 2 middle,
// 3 last) and length (29 bits), its bytes, and zeros up to a multiple of 4. A writer splits a record where the magic
// number stands in it, at a multiple of 4, and leaves that number out. So after damage the next record is where such a
// number stands. A record begins with a header of 24 bytes: flag (u32), a label (f32) and two ids (u64). A flag that is
// not 0 is the number of labels, which follow the header, as float32, and replace the one in it.
//
// InsightFace's files begin with a range of numbers of records: two labels, and no picture. In such a file all records
// of this kind are ranges, not samples, and also where the first record is damaged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "feedline/reach.h"

namespace feedline {

enum class RecordIOError : int {
    none = 0,
    cut,        // a part reaches beyond the end; expected, got: bytes of the part
    bad_magic,  // a part begins with another number: got
    bad_part,   // a part of this kind cannot stand here: got
    length,     // a record does not end where the next one begins; expected, got: bytes of the record
    header,     // a record is shorter than its header and labels; expected, got: bytes
    labels,     // another number of labels; expected, got
    io,         // the disk failed: errno
};

struct RecordIOEntry {
    std::uint64_t key, offset;    // the number of the record, from 0, and its first byte
    std::uint32_t size, samples;  // bytes up to the end of its last part's; number of labels, 0 for a bad record
};
static_assert(sizeof(RecordIOEntry) == 24, "entries are written to index files as they are");

// Finds the records of an open file by their headers. A part of the file that is no record is an entry, too, and so is
// a record that does not end where another begins. Not for several threads at once. Throws bad_alloc, and the exceptions
// of `reach`. After damage it reads up to the next record, so O(bytes) at most.
class RecordIOIndexer {
public:
    // The descriptor stays the caller's. Without `reach`, all of the file can be read.
    RecordIOIndexer(int descriptor, std::uint64_t size, Reach reach = nullptr)
        : descriptor_(descriptor), size_(size), reach_(std::move(reach)) {}

    // Appends the entries of the next `records` records, without ranges.
    void next(std::size_t records, std::vector<RecordIOEntry>& out);

    bool done() const { return done_; }
    RecordIOError error() const { return error_; }  // io, or bad_magic at 0 if there is no record in the file
    std::uint64_t error_byte() const { return error_byte_; }
    int error_number() const { return errno_; }     // errno of RecordIOError::io
    std::uint64_t bytes() const { return at_; }     // up to which records were found

private:
    int descriptor_;
    std::uint64_t size_, at_ = 0, number_ = 0, advised_ = 0;
    Reach reach_;
    std::pair<std::uint64_t, std::uint64_t> readable_{0, 0};  // range that `reach_` returned last
    bool done_ = false, any_ = false, ranges_ = false;
    std::uint64_t error_byte_ = 0;
    int errno_ = 0;
    RecordIOError error_ = RecordIOError::none;
};

struct RecordIOFault {
    std::int64_t byte;  // from the start of the memory
    std::int64_t expected, got;
    std::int32_t record;
    std::int32_t code;  // RecordIOError
};
static_assert(sizeof(RecordIOFault) == 32, "faults are handed out as records");

// The pictures of records. If all records are of one part, only `spans` is set, else only `bounds` and `data` are.
struct RecordIOImages {
    std::vector<std::int64_t> spans;   // pairs (begin, end) of places in the memory
    std::vector<std::int64_t> bounds;  // of each picture in `data`, n + 1
    std::vector<std::uint8_t> data;
};

// Reads n records of an indexer from memory that may be a mapped file. Record i is memory[begin[i] ..][0 .. sizes[i]),
// inside the memory, and gets labels[label_bounds[i] .. label_bounds[i + 1]). A record with a fault has no picture and
// labels of 0; its first fault is appended to `faults`. Returns null, or the address that could not be read. Throws
// bad_alloc. O(records), or O(bytes) if a record has several parts.
const void* read_recordio(const std::uint8_t* memory, std::size_t size, const std::int64_t* begin,
                          const std::int64_t* sizes, std::size_t n, const std::int64_t* label_bounds, float* labels,
                          RecordIOImages& images, std::vector<RecordIOFault>& faults);

}  // namespace feedline
