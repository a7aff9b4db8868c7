// SPDX-License-Identifier: Apache-2.0
// CNTK's binary format (CBF): the places of the sequences of its chunks, and copies of them.
//
// A chunk has the length of each sequence (u32, the longest of its streams), then the streams one after the other, each
// sequence by sequence:
//
//   dense   samples u32, values[samples * dim]
//   sparse  samples u32, nnz i32, values[nnz], indices i32[nnz], values per sample i32[samples]
//
// little-endian, unaligned. Nothing in it is trusted: a length is compared with the remaining bytes before it is used.
// The bytes may be in a mapped file, so callers run these kernels under `guarded` (guard.h), and the kernels neither
// allocate nor throw. All arrays are the caller's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feedline {

struct CbfStream {
    bool sparse;
    std::uint32_t value_bytes;  // 4 or 8
    std::uint32_t dim;          // at least 1
};

// A run of chunks of one file that are read together.
struct CbfChunks {
    const std::uint8_t* bytes;      // chunk 0 begins here, the others follow without gaps
    const std::int64_t* sizes;      // bytes of each chunk
    const std::uint32_t* sequences;  // of each chunk, from the file's table
    const std::uint32_t* samples;    // likewise
    std::size_t count;
};

enum class CbfError : int {
    none = 0,
    lengths_cut,    // the lengths of the sequences do not fit into the chunk
    sequence_cut,   // a sequence does not fit into the rest of the chunk
    bad_nnz,        // a number of stored values below 0, or above in a sequence without samples
    wrong_length,   // the length of a sequence differs from its longest stream
    wrong_samples,  // the lengths do not add up to the samples of the table
    trailing,       // bytes after the last sequence
};

struct CbfFault {
    std::int64_t byte = 0;  // from `CbfChunks::bytes`
    std::int64_t expected = 0, got = 0;
    std::int32_t stream = -1;
    std::int32_t code = 0;           // CbfError
    std::int64_t sequence = -1;      // within the run
};
static_assert(sizeof(CbfFault) == 40, "faults are handed out as records");

// Finds the sequences of all chunks, `n` in all. The arrays have one row of n entries per stream: begin (of the values,
// from `CbfChunks::bytes`), samples, and stored (nnz, 0 for a dense stream). `faults` has one entry per chunk, with
// code 0 for a good one. The sequences of a bad chunk get no samples. `open_end`: whether other bytes may follow the
// last chunk, as after the last one of a file. O(n * streams), without reading values.
void find_cbf(const CbfChunks& chunks, const CbfStream* streams, std::size_t num_streams, std::size_t n, bool open_end,
              std::int64_t* begin, std::uint32_t* samples, std::int32_t* stored, CbfFault* faults);

// Copies dense sequences one after the other. O(bytes).
void copy_cbf_dense(const std::uint8_t* bytes, const std::int64_t* begin, const std::uint32_t* samples, std::size_t n,
                    std::size_t row_bytes, std::uint8_t* out);

// Copies sparse sequences as CSR rows. indptr has one more entry than there are samples in all. `bad[i]` is set if the
// values per sample of sequence i are negative or do not add up, and its values are then in its last sample. Indices
// are copied unchecked, as a gather checks them. O(bytes).
void copy_cbf_sparse(const std::uint8_t* bytes, const std::int64_t* begin, const std::uint32_t* samples,
                     const std::int32_t* stored, std::size_t n, std::size_t value_bytes, std::int64_t* indptr,
                     std::int32_t* indices, std::uint8_t* values, bool* bad);

}  // namespace feedline
