// SPDX-License-Identifier: Apache-2.0
// What a Parquet file's footer and page headers say about sizes. Both are Thrift structures in the compact protocol,
// and every byte of them is distrusted: a length is compared with the bytes that are left before anything is made of
// it, nesting is bounded, and a field that is used has its type and appears once. Fields that are not used (statistics
// above all) are stepped over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace feedline {

// Damage, and the byte, counted from the start of what was parsed, where it was noticed.
class ParquetError : public std::runtime_error {
public:
    ParquetError(const std::string& what, std::size_t at) : std::runtime_error(what), byte(at) {}
    std::size_t byte;
};

// Of one column in one row group.
struct ParquetColumn {
    std::int64_t values;        // of all its pages, nulls and empty lists among them
    std::int64_t uncompressed;  // bytes of its pages, their headers among them
    std::int64_t compressed;    // the same as they lie in the file
    std::int64_t begin;         // file offset of its first page
};
static_assert(sizeof(ParquetColumn) == 32, "columns are handed out as rows of four int64");

struct ParquetFooter {
    std::vector<std::int64_t> rows;      // of each row group
    std::vector<ParquetColumn> columns;  // row group after row group, leaf columns in the order of the schema
    std::size_t width = 0;               // leaf columns
};

// Parses a whole footer, the bytes between the pages and the last eight of the file. O(n) time, O(columns) memory,
// about 1 ns a byte. Throws ParquetError, also where there are no such figures: columns that are encrypted,
// row groups of different numbers of columns.
ParquetFooter parse_parquet_footer(const std::uint8_t* bytes, std::size_t n);

struct ParquetPage {
    std::size_t header;         // bytes of the header itself
    std::int64_t compressed;    // bytes of the page behind it
    std::int64_t uncompressed;  // what they become
    std::int64_t values;        // as ParquetColumn counts them; 0 unless it is a data page
};

// Parses the header of a page. False: it is longer than n bytes. Throws ParquetError.
bool parse_parquet_page(const std::uint8_t* bytes, std::size_t n, ParquetPage& page);

}  // namespace feedline
