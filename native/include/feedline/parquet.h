// SPDX-License-Identifier: Apache-2.0
// Sizes from a Parquet file's footer and page headers. Both are Thrift structures in the compact protocol, and no byte
// of them is trusted: a length is compared with the remaining bytes before it is used, nesting is limited, and a field
// that is used must have its type and appear once. Unused fields are skipped. Of the statistics only the number of nulls is
// read. It decides nothing, so one that cannot be right is ignored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace feedline {

// Damage, and the byte at which it was detected, from the start of the parsed bytes.
class ParquetError : public std::runtime_error {
public:
    ParquetError(const std::string& what, std::size_t at) : std::runtime_error(what), byte(at) {}
    std::size_t byte;
};

// One column in one row group.
struct ParquetColumn {
    std::int64_t values;        // in all its pages, including nulls and empty lists
    std::int64_t uncompressed;  // bytes of its pages, including their headers
    std::int64_t compressed;    // bytes of its pages in the file, including their headers
    std::int64_t begin;         // file offset of its first page
    std::int64_t nulls;         // of its values, or -1 if the footer does not say
};

struct ParquetFooter {
    std::vector<std::int64_t> rows;      // of each row group
    std::vector<ParquetColumn> columns;  // by row group, then by leaf column, as the schema orders them
    std::size_t width = 0;               // number of leaf columns
};

// Parses a footer: all bytes between the pages and the last eight bytes of the file. Throws ParquetError, also if
// columns are encrypted or row groups differ in their number of columns. O(n) time, about 1 ns per byte, O(columns)
// memory.
ParquetFooter parse_parquet_footer(const std::uint8_t* bytes, std::size_t n);

struct ParquetPage {
    std::size_t header;         // bytes of the header itself
    std::int64_t compressed;    // bytes of the page after it
    std::int64_t uncompressed;  // bytes they decompress to
    std::int64_t values;        // as ParquetColumn counts them; 0 unless it is a data page
};

// Parses the header of a page. Returns false if it is longer than n bytes. Throws ParquetError. O(n).
bool parse_parquet_page(const std::uint8_t* bytes, std::size_t n, ParquetPage& page);

}  // namespace feedline
