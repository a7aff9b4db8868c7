// SPDX-License-Identifier: Apache-2.0
// The instruction sets that this process may use, determined once, at import.
#pragma once

namespace feedline {

struct Cpu {
    bool sse41;  // SSE4.1 and SSE4.2: parser, crc32c, pictures
    bool avx2;   // index scan, Feistel, bounds of sparse indices, codes of gradients, updates, pictures
    bool f16c;   // with AVX2: codes in half precision
    bool crc32;  // of aarch64: crc32c
};

// The instruction sets of the processor, unless FEEDLINE_SIMD restricts them: "portable", "sse41" or "avx2" (the
// default: all). With it tests compare all variants on one machine. Other processors than x86 know "portable" only.
const Cpu& cpu();

}  // namespace feedline
