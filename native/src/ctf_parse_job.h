// SPDX-License-Identifier: Apache-2.0
// One call of CtfParser::parse, as its variants see it. What these functions allocate or call in the standard
// library is compiled once, without special instructions, in ctf_parse.cpp.
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
    std::uint64_t head, head_mask;  // the first eight bytes, and which of them count
};

struct CtfParseJob {
    // What to parse.
    const std::uint8_t* text;
    std::size_t bytes;
    const CtfEntry* entries;
    std::size_t n;
    std::uint64_t origin;
    const CtfField* fields;
    const CtfName* names;
    int streams;
    int size_stream;
    bool lenient, fill;
    std::uint64_t memory_limit;

    // What became of it.
    CtfColumn* columns;
    std::int64_t** offsets;  // per stream, n + 1 long
    std::uint8_t* valid;     // n long
    CtfBytes errors;
    std::int64_t allowed;  // errors left, -1: strict
    std::uint64_t used;    // bytes of output
    bool outside;          // an entry lies outside the text

    void record(CtfError code, int stream, std::uint64_t byte, std::int64_t expected, std::int64_t got,
                std::size_t sequence);
    // Copy of a sequence without a final newline, with one added, and with padding; valid until the next call.
    const std::uint8_t* with_newline(const std::uint8_t* sequence, std::size_t length);
    std::vector<std::uint8_t> scratch;
};

// A number of valid grammar that is too long for the exact path: [sign] digits ... as [p, e).
float ctf_exact_float(const std::uint8_t* p, const std::uint8_t* e);
double ctf_exact_double(const std::uint8_t* p, const std::uint8_t* e);

extern const double kCtfPowersOfTen[23];  // 10^0 .. 10^22, all exact

void ctf_parse_portable(CtfParseJob& job);
void ctf_parse_sse41(CtfParseJob& job);

}  // namespace feedline
