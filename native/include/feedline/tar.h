// SPDX-License-Identifier: Apache-2.0
// Tar archives (ustar, GNU, pax): where the samples of a WebDataset shard lie, and their members.
//
// A name is a key and a suffix: the directories and the base name up to its first dot, and the rest, in lower case.
// Consecutive members of one key are a sample; names without a dot, names that begin with a component `__...__`,
// directories and devices are skipped. Links, sparse members and parts of volumes are errors, as their bytes are
// elsewhere. Zero blocks are skipped, so that archives one behind the other are read to the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "feedline/reach.h"

namespace feedline {

enum class TarError : int {
    none = 0,
    cut,            // a member or a header reaches beyond the end
    bad_header,     // a checksum that is wrong, or a number that cannot be read
    bad_extended,   // a pax record, or a long name, that cannot be read
    link,
    sparse,
    volume,         // a part of an archive of several volumes
    global,         // a pax header that sets path or size of all members
    too_long,       // a sample of 4 GiB
    io,             // the disk failed: errno
    missing,        // a sample lacks a wanted suffix
    repeated,       // a sample has a wanted suffix twice
};

// Splits a name; false if it is one to skip. `suffix` is as written.
bool split_tar_name(std::string_view name, std::string_view& key, std::string_view& suffix);

// The key that samples are joined by: a number of up to 19 digits as it is, so that it joins ids of CTF; else a hash.
std::uint64_t tar_key(std::string_view key);

struct TarEntry {
    std::uint64_t key, offset;  // of the first header, extended ones included
    std::uint32_t size, samples;  // up to the end of the last member's data; 1
};
static_assert(sizeof(TarEntry) == 24, "entries are those of index files");

// Finds the samples of an open file by its headers, skipping the data. Not for several threads at once.
class TarIndexer {
public:
    // The descriptor stays the caller's. Without `reach`, all of the file can be read.
    TarIndexer(int descriptor, std::uint64_t size, Reach reach = nullptr)
        : descriptor_(descriptor), size_(size), reach_(std::move(reach)) {}

    // Samples of the next `members` members, or fewer at the end. O(members) reads of 512 bytes.
    void next(std::size_t members, std::vector<TarEntry>& out);

    bool done() const { return done_; }
    TarError error() const { return error_; }  // nothing is found from there on
    std::uint64_t error_byte() const { return error_byte_; }
    int error_number() const { return errno_; }
    std::uint64_t bytes() const { return at_; }  // up to which headers were read

private:
    void end_sample(std::vector<TarEntry>& out);

    int descriptor_;
    std::uint64_t size_, at_ = 0, advised_ = 0;
    Reach reach_;
    std::pair<std::uint64_t, std::uint64_t> within_{0, 0};  // what was reached last
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

// Finds the wanted members of n samples that an indexer has found, in memory that may be a mapped file.
//
// fields: suffixes in lower case. spans: for each field n pairs (begin, end) of places in memory, (0, 0) for a sample
// with a fault, whose first one is appended to `faults`. keys: appended, with bounds, if not null. The address
// that cannot be read, or null. O(members).
const void* find_tar_members(const std::uint8_t* memory, std::size_t size, const std::int64_t* begin,
                             const std::int64_t* sizes, std::size_t n, const std::vector<std::string>& fields,
                             std::int64_t* spans, std::vector<TarFault>& faults, std::string* keys,
                             std::int64_t* key_bounds);

// The suffixes of a sample, as `find_tar_members` finds it, each with begin and end of its data.
struct TarSuffix {
    std::string suffix;
    std::int64_t begin, end;
};
std::vector<TarSuffix> list_tar_members(const std::uint8_t* memory, std::size_t size);

}  // namespace feedline
