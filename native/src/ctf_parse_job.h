// SPDX-License-Identifier: Apache-2.0
// One call of CtfParser::parse, for its variants. Code that allocates or calls the standard library is compiled once,
// without special instructions, in ctf_parse.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "feedline/ctf.h"

namespace feedline {

// A field prepared for comparing names eight bytes at a time.
struct CtfName {
    const std::uint8_t* bytes;
    std::size_t length;
    std::uint64_t head, head_mask;  // the first eight bytes, and a mask of the bytes that the name has
};

struct CtfParseJob {
    // The input.
    const std::uint8_t* text;
    std::size_t bytes;
    const CtfEntry* entries;
    std::size_t n;
    std::uint64_t origin;
    const CtfField* fields;
    const CtfName* names;
    int streams;
    int size_stream;
    bool lenient;
    std::uint64_t memory_limit;

    // The output.
    CtfColumn* columns;
    std::int64_t** offsets;  // per stream, n + 1 long
    std::uint8_t* valid;     // n long
    CtfBytes errors;
    std::int64_t allowed;  // errors left, -1: strict
    std::uint64_t used;    // bytes of output
    bool outside;          // whether an entry is outside the text

    bool optional;                            // whether a field is
    std::vector<std::size_t> missing_before;  // sizes of `CtfColumn::missing` at the start of the sequence

    void record(CtfError code, int stream, std::uint64_t byte, std::int64_t expected, std::int64_t got,
                std::size_t sequence);
    // Copies a sequence without a final newline, and adds one, and padding. The copy is valid until the next call.
    const std::uint8_t* with_newline(const std::uint8_t* sequence, std::size_t length);
    std::vector<std::uint8_t> scratch;
};

// Read a number of valid grammar, [p, e), that is too long for the fast path.
float ctf_exact_float(const std::uint8_t* p, const std::uint8_t* e);
double ctf_exact_double(const std::uint8_t* p, const std::uint8_t* e);

extern const double kCtfPowersOfTen[23];  // 10^0 .. 10^22, all exact

void ctf_parse_portable(CtfParseJob& job);
void ctf_parse_sse41(CtfParseJob& job);

}  // namespace feedline
