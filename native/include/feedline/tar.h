// SPDX-License-Identifier: Apache-2.0
// Tar archives (ustar, GNU, pax): the places of the samples of a WebDataset shard, and of their members.
//
// A name consists of a key, which is the directories and the base name up to its first dot, and a suffix, which is the
// text after that dot, in lower case. Consecutive members of one key are a sample. Names without a dot, names that
// begin with a component `__...__`, directories and devices are skipped. Links, sparse members and parts of volumes are
// errors, as their bytes are elsewhere. Zero blocks are skipped, so concatenated archives are read to the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "feedline/byte_stream.h"
#include "feedline/reach.h"

namespace feedline {

enum class TarError : int {
    none = 0,
    cut,            // a member or a header reaches beyond the end
    bad_header,     // a wrong checksum, or a number that cannot be read
    bad_extended,   // a pax record or a long name that cannot be read
    link,
    sparse,
    volume,         // a part of an archive of several volumes
    global,         // a pax header that sets path or size of all members
    too_long,       // a sample of 4 GiB
    io,             // the disk failed: errno
    missing,        // a sample lacks a requested suffix
    repeated,       // a sample has a requested suffix twice
};

// Splits a name into views of it. Returns false for a name to skip. `suffix` is as written.
bool split_tar_name(std::string_view name, std::string_view& key, std::string_view& suffix);

// The key by which samples are joined: a number of up to 19 digits as it is, so that it matches ids of CTF, else a
// hash.
std::uint64_t tar_key(std::string_view key);

struct TarEntry {
    std::uint64_t key, offset;    // tar_key, and the byte of the first header, which may be an extended one
    std::uint32_t size, samples;  // bytes up to the end of the last member's data; 1
};
static_assert(sizeof(TarEntry) == 24, "entries are written to index files as they are");

// Finds the samples of an open file by its headers, without reading the data, or of a stream of blocks. Not for several
// threads at once. Throws bad_alloc, and the exceptions of `reach` and of the blocks.
class TarIndexer {
public:
    // The descriptor stays the caller's. Without `reach`, all of the file can be read.
    TarIndexer(int descriptor, std::uint64_t size, Reach reach = nullptr)
        : descriptor_(descriptor), size_(size), reach_(std::move(reach)) {}
    explicit TarIndexer(Blocks blocks)
        : descriptor_(-1), size_(std::numeric_limits<std::uint64_t>::max()), stream_(std::move(blocks)) {}

    // Appends the samples that the next `members` members complete. O(members) reads of 512 bytes.
    void next(std::size_t members, std::vector<TarEntry>& out);

    bool done() const { return done_; }
    TarError error() const { return error_; }  // the archive cannot be indexed from `error_byte` on
    std::uint64_t error_byte() const { return error_byte_; }
    int error_number() const { return errno_; }  // errno of TarError::io
    std::uint64_t bytes() const { return at_; }  // up to which headers were read

private:
    template <class Bytes>
    void walk(Bytes& bytes, std::size_t members, std::vector<TarEntry>& out);
    void end_sample(std::vector<TarEntry>& out);

    int descriptor_;
    std::uint64_t size_, at_ = 0, advised_ = 0;  // the size of a stream is the largest number before its end
    Reach reach_;
    std::pair<std::uint64_t, std::uint64_t> readable_{0, 0};  // range that `reach_` returned last
    std::optional<ByteStream> stream_;
    bool done_ = false, open_ = false;
    std::string key_;
    std::uint64_t begin_ = 0, end_ = 0, error_byte_ = 0;
    int errno_ = 0;
    TarError error_ = TarError::none;
};

struct TarFault {
    std::int64_t byte;  // from the start of the memory
    std::int32_t sample, field;  // the field that is missing or repeated, or -1
    std::int32_t code;           // TarError
    std::int32_t zero = 0;
};
static_assert(sizeof(TarFault) == 24, "faults are handed out as records");

// Finds the requested members of n samples of an indexer, in memory that may be a mapped file. Sample i is
// memory[begin[i] ..][0 .. sizes[i]), inside the memory.
//
// fields: suffixes in lower case. spans: for each field n pairs (begin, end) of places in memory, (0, 0) for a sample
// with a fault, of which the first is appended to `faults`. keys: if not null, the keys are appended, with their
// key_bounds[n + 1]. Returns null, or the address that could not be read. Throws bad_alloc. O(members).
const void* find_tar_members(const std::uint8_t* memory, std::size_t size, const std::int64_t* begin,
                             const std::int64_t* sizes, std::size_t n, const std::vector<std::string>& fields,
                             std::int64_t* spans, std::vector<TarFault>& faults, std::string* keys,
                             std::int64_t* key_bounds);

// A member of a sample: its suffix, in lower case, and the begin and end of its data.
struct TarSuffix {
    std::string suffix;
    std::int64_t begin, end;
};
// Lists the members of one sample, up to the first fault.
std::vector<TarSuffix> list_tar_members(const std::uint8_t* memory, std::size_t size);

}  // namespace feedline
