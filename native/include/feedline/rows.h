// SPDX-License-Identifier: Apache-2.0
// Text in rows: JSON Lines and CSV. An indexer finds rows by their bytes, and parsers turn rows into columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "feedline/ctf.h"

namespace feedline {

// Why a text or a row is refused. The numbers are part of the interface, so none is ever reused. `byte` of a record is
// the place of the error, and `got` the byte there, unless a comment names something else.
enum class RowError : std::uint16_t {
    none = 0,
    // Errors of the index: each ends the indexing.
    utf16_input = 2,
    row_too_long = 3,      // byte: where the row begins; expected: the limit
    // Errors of a row.
    not_an_object = 16,    // JSON: a row is no object
    syntax = 17,           // JSON: a byte that the grammar does not allow
    missing = 19,          // a stream without its key or column
    twice = 20,            // JSON: a key of a stream occurs twice in its object
    null_value = 21,
    wrong_type = 22,       // expected: a type, as the first byte of a value: `0 i t " [ {`
    out_of_range = 23,     // an integer that the stream's type cannot hold
    too_many_values = 24,  // of a list; expected: their number
    too_few_values = 25,   // the same; got: their number
    bad_string = 26,       // a control byte, or an invalid escape
    bad_text = 27,         // a text that is not UTF-8, or half of a surrogate pair
    too_deep = 28,
    too_many_cells = 40,   // CSV; expected and got: cells
    too_few_cells = 41,
    empty_cell = 42,       // expected: column
    bad_cell = 43,         // no number, or no boolean; expected: column
    open_quote = 44,       // a quote that is not closed; expected: column
    cell_range = 45,       // an integer that the stream's type cannot hold; expected: column
    cell_text = 46,        // text that is not UTF-8; expected: column
    cell_return = 47,      // a carriage return alone, outside quotes; expected: column
    // Errors of a whole call: parsing stops.
    memory_limit = 48,     // expected: the limit, got: bytes needed so far
    // TFRecord, for which `got` of too_many_values, too_few_values and out_of_range is the number or value.
    record_cut = 56,       // the file ends within a record; expected: bytes of the record
    length_crc = 57,       // the checksum of a length differs; expected: as stored, got: as computed
    message_crc = 58,      // the same for a message
    record_too_long = 59,  // expected: the limit, got: bytes of the message
    bad_message = 60,      // bytes that are no message of protobuf
    feature_kind = 61,     // expected and got: 1 bytes, 2 floats, 3 integers, 0 none
    uneven_values = 62,    // expected: values of a sample, got: values of the feature, which are no multiple
};

enum class RowType : std::uint8_t {
    boolean, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float32, float64, text, bytes
};
constexpr int kRowTypes = 13;

// A stream to parse.
struct RowField {
    RowType type;
    std::vector<std::int64_t> shape;  // of a sample; none for text and bytes
    bool ragged;                      // JSON: a row holds a list of samples
    bool optional = false;            // whether values may be missing, see `RowColumn::missing`
};

// The columns of one stream over all rows of a call. A bad row has a sample of zeros, or none if the stream is ragged.
struct RowColumn {
    CtfBytes values;   // numbers; or the bytes of all strings
    CtfBytes bounds;   // strings: int64 (samples + 1,)
    CtfBytes offsets;  // ragged: int64 (rows + 1,), in samples
    // Of an optional field: pairs of int64, the first missing value and the number of missing ones from there, counted
    // over all samples, strings one each. They are zeros, or empty strings. A ragged row that is missing has no samples.
    CtfBytes missing;
    std::uint64_t samples = 0;
};

struct RowColumns {
    std::vector<RowColumn> streams;
    CtfBytes errors;  // CtfErrorRecord with codes of RowError, ascending by row, one a row
    bool outside = false;  // whether an entry is outside the text; the rest of the result is then undefined
};

// The rows to parse, borrowed. Row i is text[offset - origin ..][0 .. size), with the offset and size of its entry.
// `origin` is the file offset of text[0]. 64 bytes before text and after its end must be readable, with any values.
// Each entry is read once, and checked, so entries may be in a file that others can write to.
struct Rows {
    const std::uint8_t* text;
    std::size_t bytes;
    const CtfEntry* entries;
    std::size_t n;
    std::uint64_t origin;

    // Sets the place of row i in the text, and its bytes. Returns false if it is outside.
    bool find(std::size_t i, std::size_t& begin, std::size_t& size) const {
        CtfEntry entry;
        std::memcpy(&entry, entries + i, sizeof entry);
        const std::uint64_t first = entry.offset - origin;  // huge if it is before the text
        if (first > bytes || entry.size > bytes - first) return false;
        begin = static_cast<std::size_t>(first);
        size = entry.size;
        return true;
    }
};

// The keys that lead from an object to a value. After a key, null stands for each item of its list.
using JsonPath = std::vector<std::optional<std::string>>;

// Parses rows, each a JSON object, strictly by RFC 8259, but with NaN, Infinity and -Infinity. Keys without a stream
// are skipped, but their grammar is checked. Immutable, for any number of threads. Throws bad_alloc. O(bytes + output).
class JsonParser {
public:
    // paths[i]: from a row's object to the value of stream i. No path is the beginning of another one, one that leads
    // to the items of a list is of a ragged field, and does so once, and for a key all paths or none. memory_limit:
    // bytes of output.
    JsonParser(std::vector<RowField> fields, std::vector<JsonPath> paths, std::uint64_t memory_limit);
    ~JsonParser();

    RowColumns parse(const Rows& rows) const;
    // The number of samples of one row in stream `size_stream`, or if that is -1 in the longest. 0 for a bad row.
    std::uint32_t samples(const std::uint8_t* row, std::size_t bytes, int size_stream) const;

    const std::vector<RowField>& fields() const { return fields_; }

    struct Node;

private:
    std::vector<RowField> fields_;
    std::unique_ptr<Node> root_;
    std::uint64_t memory_limit_;
};

// Where a column of cells goes.
struct CsvTarget {
    std::int32_t stream;  // -1: the column is skipped
    std::int64_t place;   // of the cell's value in the sample
};

// Parses rows of cells between delimiters. A quote at the beginning of a cell is closed by the next single quote, and
// the text from there to the delimiter belongs to the cell. Immutable, for any number of threads. Throws bad_alloc.
// O(bytes + output).
class CsvParser {
public:
    CsvParser(std::vector<RowField> fields, std::vector<CsvTarget> columns, std::uint8_t delimiter,
              std::uint64_t memory_limit);

    RowColumns parse(const Rows& rows) const;

    const std::vector<RowField>& fields() const { return fields_; }

private:
    std::vector<RowField> fields_;
    std::vector<CsvTarget> columns_;
    std::uint8_t delimiter_;
    std::uint64_t memory_limit_;
};

// Finds the rows of a text that is fed in blocks that may be cut anywhere. The key of an entry is the number of the
// line in which the row begins, from 1. A UTF-8 byte order mark and blank lines are skipped. Not for several threads at
// once. Throws bad_alloc. O(bytes) time, memory for at most a row.
class RowIndexer {
public:
    // JSON: every line is a row. `parser`, if any, counts the samples of rows, see JsonParser::samples. Rows of more
    // than `max_bytes` are an error.
    RowIndexer(std::shared_ptr<const JsonParser> parser, int size_stream, std::uint64_t max_bytes);
    // CSV: a newline within quotes ends no row. The first `skip` rows are left out.
    RowIndexer(std::uint8_t delimiter, std::uint64_t skip, std::uint64_t max_bytes);

    // Appends the entries (CtfEntry) of the rows that this block, or the end of the text, completes.
    void feed(const std::uint8_t* block, std::size_t n, CtfBytes& entries);
    void finish(CtfBytes& entries);

    RowError error() const { return error_; }
    std::uint64_t error_byte() const { return error_byte_; }
    std::uint64_t bytes() const { return bytes_; }
    std::uint64_t lines() const { return line_; }

private:
    void begin(CtfBytes& entries);
    void lines_of(const std::uint8_t* block, std::size_t n, CtfBytes& entries);
    void cells_of(const std::uint8_t* block, std::size_t n, CtfBytes& entries);
    bool end_row(std::uint64_t end, const std::uint8_t* tail, std::size_t n, CtfBytes& entries);

    bool csv_;
    std::shared_ptr<const JsonParser> parser_;
    int size_stream_ = -1;
    std::uint8_t delimiter_ = 0;
    std::uint64_t skip_ = 0, max_bytes_;

    std::string head_;   // the first bytes, until they could be a byte order mark
    bool begun_ = false;
    std::uint64_t bytes_ = 0;  // before the block being fed
    std::uint64_t line_ = 0;   // lines that have ended
    std::uint64_t row_ = 0, row_line_ = 0;  // where the row begins
    bool blank_ = true;
    bool quoted_ = false, closing_ = false;
    std::uint8_t before_ = 0;  // the byte before the block
    std::string carry_;        // the row's bytes before the block, if samples are counted
    RowError error_ = RowError::none;
    std::uint64_t error_byte_ = 0;
};

}  // namespace feedline
