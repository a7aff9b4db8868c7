// SPDX-License-Identifier: Apache-2.0
// CNTK text format: an indexer that finds sequences by their bytes, and a parser that turns the sequences of a chunk
// into columns. The grammar is CNTK's. `lenient` adds blank lines and the numbers `.5 5.e3 nan inf`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "feedline/recycled_memory.h"

namespace feedline {

// Why a text is refused. The numbers are part of the interface, as quarantine files have them, so none is ever reused.
// `expected` and `got` of a record are counts or values unless a comment says otherwise. `byte` is the place of the
// error.
enum class CtfError : std::uint16_t {
    none = 0,
    // Errors of the index: each ends the indexing.
    empty_input = 1,        // nothing but white space
    utf16_input = 2,        // a UTF-16 byte order mark
    no_sequence_id = 3,     // the first row begins with neither a digit nor '|'
    id_overflow = 4,        // an id of more than 64 bits; byte: the beginning of its row
    sequence_too_long = 5,  // more than 2^32 - 1 bytes; byte: the beginning of the sequence
    // Errors of a sequence.
    unexpected_byte = 16,   // a byte where '|' should begin a sample; got: the byte
    bad_name = 17,          // '|' is not followed by a name; got: the byte
    empty_row = 18,         // a row without any declared stream; byte: the beginning of the row
    too_many_values = 19,   // a dense sample; expected: the dimension; byte: its '|'
    bad_number = 20,        // got: the byte that cannot continue or follow a number
    bad_index = 21,         // a sparse index does not begin with a digit; got: the byte
    index_too_large = 22,   // expected: the dimension, which is the first index that is too large
    no_colon = 23,          // a sparse index is not followed by ':'; got: the byte
    missing_stream = 24,    // a declared stream has no sample; expected 1, got 0
    too_many_samples = 25,  // a stream has more samples than the sequence has rows
    too_few_samples = 26,   // the longest stream has fewer samples than the sequence has rows
    size_mismatch = 27,     // the stream that defines the size has another length than indexed
    too_few_values = 28,    // a dense sample; expected: the dimension; byte: its '|'
    // Errors of a whole call: parsing stops.
    memory_limit = 48,      // expected: the limit, got: bytes needed so far
    errors_exhausted = 49,  // one error more than allowed; expected: 0
};

// An array of bytes that grows. Its pages cost nothing before they are written.
struct CtfBytes {
    std::uint8_t* data = nullptr;
    std::size_t size = 0;
    std::size_t capacity = 0;

    CtfBytes() = default;
    CtfBytes(CtfBytes&& other) noexcept;
    CtfBytes& operator=(CtfBytes&& other) noexcept;
    ~CtfBytes();
    void grow(std::size_t extra);  // room for at least `extra` bytes after size; throws std::bad_alloc
    // The same in an empty array, which gets the memory of an earlier chunk if it is large.
    void recycle(std::size_t room);
    void trim() noexcept;  // frees the room after size, if it is not recycled memory

private:
    void free_memory() noexcept;

    RecycledMemory::Piece piece_{};  // the memory if it is recycled
};

// A sequence in an index file.
struct CtfEntry {
    std::uint64_t key;      // id of the sequence, or its zero-based line number if the file has no ids
    std::uint64_t offset;   // of its first byte from the start of the file
    std::uint32_t size;     // bytes, newline included
    std::uint32_t samples;  // its rows, or if a stream defines the size, its rows with that stream
};
static_assert(sizeof(CtfEntry) == 24, "entries are written to index files as they are");

// Finds the sequences of a file that is fed in blocks that may be cut anywhere. Not for several threads at once. Throws
// bad_alloc. O(bytes) time, O(1) memory.
//   - A UTF-8 byte order mark and white space before the first row are skipped.
//   - The first row decides: '|' (or `skip_ids`) means that every line is a sequence, else ids separate them.
//   - With ids, a line with another id than the line before begins a sequence, other lines continue it.
//   - With a `size_stream`, sequences (lines) that never name it are dropped.
//   - If `lenient`, blank lines are neither sequences nor rows.
class CtfIndexer {
public:
    // `size_stream`: name as in the file, empty for none.
    CtfIndexer(std::string size_stream, bool skip_ids, bool lenient);

    // Appends the entries (CtfEntry) that this block completes. After an error nothing more is appended.
    void feed(const std::uint8_t* block, std::size_t n, CtfBytes& entries);
    // Appends the last sequence, at the end of the file.
    void finish(CtfBytes& entries);

    CtfError error() const { return error_; }
    std::uint64_t error_byte() const { return error_byte_; }
    bool has_ids() const { return ids_; }
    std::uint64_t bytes() const { return bytes_; }
    std::uint64_t lines() const { return line_; }  // that have ended; after finish(), all

private:
    enum class Phase : std::uint8_t { mark, space, rows, done };

    void begin_with_part_of_mark();
    const std::uint8_t* prologue(const std::uint8_t* p, const std::uint8_t* end);
    template <bool Ids, bool Main, bool Lenient>
    void rows(const std::uint8_t* p, const std::uint8_t* end, CtfBytes& entries);
    bool end_line(std::uint64_t line_end, bool ids, bool counts, CtfBytes& entries);
    const std::uint8_t* read_id(const std::uint8_t* p, const std::uint8_t* end, CtfBytes& entries);
    bool id_is_known(CtfBytes& entries);
    const std::uint8_t* match_name(const std::uint8_t* p, const std::uint8_t* end);
    bool emit(std::uint64_t key, std::uint64_t from, std::uint64_t to, std::uint64_t samples, CtfBytes& entries);
    void fail(CtfError error, std::uint64_t byte);

    std::string name_;
    bool skip_ids_, lenient_;
    Phase phase_ = Phase::mark;
    unsigned mark_ = 0;  // bytes of a byte order mark seen
    std::uint8_t first_[2] = {0, 0};

    bool ids_ = false;
    std::uint64_t bytes_ = 0;  // before the block being fed
    const std::uint8_t* block_ = nullptr;

    std::uint64_t line_ = 0, line_start_ = 0;
    bool line_blank_ = true;   // lenient: whether all bytes so far are blank
    bool line_counts_ = false; // whether the line names the size stream
    bool in_id_ = false, id_found_ = false, first_row_ = true;
    std::uint64_t id_ = 0;
    bool in_name_ = false;
    std::size_t name_matched_ = 0;

    std::uint64_t key_ = 0, sequence_start_ = 0, samples_ = 0;
    CtfError error_ = CtfError::none;
    std::uint64_t error_byte_ = 0;
};

// A stream to parse.
// What becomes of values that a field lacks.
enum class CtfFill : std::uint8_t {
    none,      // they are errors
    padded,    // zeros, in a dense sample with too few of them, CNTK's rule
    optional,  // the same, and the one sample of a sequence that has none, see `CtfColumn::missing`
};

struct CtfField {
    std::string name;  // as in the file: 1 or more bytes, none of them blank, '|' or a control byte
    std::int64_t dim;  // values of a dense sample, or one more than the largest sparse index; < 2^31
    bool sparse;
    bool float64;
    CtfFill fill = CtfFill::none;
};

struct CtfErrorRecord {
    std::uint64_t byte;  // from the start of the file
    std::int64_t expected, got;
    std::uint32_t sequence;  // within the call
    std::int16_t stream;     // -1: none
    std::uint16_t code;
};
static_assert(sizeof(CtfErrorRecord) == 32, "records are handed out as they are");

// The columns of one stream over all sequences of a call; N samples.
struct CtfColumn {
    CtfBytes values;   // dense: float or double (N, dim); sparse: (nnz,)
    CtfBytes indices;  // sparse: int32 (nnz,)
    CtfBytes indptr;   // sparse: int64 (N + 1,)
    CtfBytes offsets;  // int64 (sequences + 1,), in samples; empty if every sequence has one sample
    // Of an optional field: pairs of int64, the first missing value and the number of missing ones from there. Values
    // are counted over all samples, sparse samples as one each.
    CtfBytes missing;
    std::uint64_t samples = 0;
};

struct CtfColumns {
    std::vector<CtfColumn> streams;
    CtfBytes valid;   // one byte per sequence; empty if all are good
    CtfBytes errors;  // CtfErrorRecord
    std::int64_t errors_left = -1;
    bool outside = false;  // whether an entry is outside the text; the rest of the result is then undefined
};

struct CtfParseJob;
using CtfVariant = void (*)(CtfParseJob&);  // the parser for one instruction set

// Parses sequences. Immutable, for any number of threads.
//   - Numbers are rounded correctly to float32 or float64. Too large ones become infinite, too small ones zero.
//   - Strict parsing fills optional fields that a sequence lacks. Then rows may have no samples, but not be blank.
//   - Strict, allowed_errors = -1: a sequence with an error contributes nothing to any stream.
//   - allowed_errors >= 0: CNTK's counting. A bad sample is dropped. Each bad sample, row without a sample, and
//     sequence with fewer or more samples than rows counts as an error. The first error above the limit ends the call,
//     and so does a stream without samples.
class CtfParser {
public:
    // `size_stream`: index of the field that defines the size, -1 for none. `memory_limit`: bytes of output.
    CtfParser(std::vector<CtfField> fields, int size_stream, bool lenient, std::uint64_t memory_limit);

    // Entry i is the sequence text[offset - origin ..][0 .. size), with as many samples as the entry has. `origin` is
    // the file offset of text[0]. 64 bytes before text and after its end must be readable, with any values. Each entry
    // is read once, and checked, so entries may be in a file that others can write to. Throws bad_alloc. O(bytes +
    // output).
    CtfColumns parse(const std::uint8_t* text, std::size_t bytes, const CtfEntry* entries, std::size_t n,
                     std::uint64_t origin, std::int64_t allowed_errors) const;
    // The same with the parser for one instruction set, to compare them.
    CtfColumns parse_with(CtfVariant variant, const std::uint8_t* text, std::size_t bytes, const CtfEntry* entries,
                          std::size_t n, std::uint64_t origin, std::int64_t allowed_errors) const;

    const std::vector<CtfField>& fields() const { return fields_; }

private:
    std::vector<CtfField> fields_;
    int size_stream_;
    bool lenient_;
    std::uint64_t memory_limit_;
};

}  // namespace feedline
