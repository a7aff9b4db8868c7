// SPDX-License-Identifier: Apache-2.0
// Which instruction sets this process may use; asked once, at import.
#pragma once

namespace feedline {

struct Cpu {
    bool sse41;  // SSE4.1 and SSE4.2: parser, crc32c
    bool avx2;   // index scan, Feistel, bounds of sparse indices
};

// What the processor offers, unless FEEDLINE_SIMD narrows it: "portable", "sse41" or "avx2" (the default:
// everything found). The variable lets tests compare all variants on one machine.
const Cpu& cpu();

}  // namespace feedline
