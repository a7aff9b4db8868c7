// SPDX-License-Identifier: Apache-2.0
// The places of the messages of an Arrow IPC stream, and of the buffers of a record batch, read from the flatbuffers
// that describe them. No byte of them is trusted. Every offset is compared with the size of the metadata before it is
// followed, and buffers must be within their message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "feedline/reach.h"

namespace feedline {

// Damage, and the byte at which it was detected, from the start of the file or of the head.
class ArrowError : public std::runtime_error {
public:
    ArrowError(const std::string& what, std::size_t at) : std::runtime_error(what), byte(at) {}
    std::size_t byte;
};

// The kinds of messages, as the format numbers them.
enum ArrowKind : std::int64_t { kArrowSchema = 1, kArrowDictionary = 2, kArrowBatch = 3 };

// One message of a stream.
struct ArrowMessage {
    std::int64_t kind;
    std::int64_t start;       // its first byte, from the start of the file
    std::int64_t head;        // bytes before the body: marker (none before Arrow 0.15), length, metadata
    std::int64_t body;        // bytes of the body
    std::int64_t rows;        // of a record batch or a dictionary, else 0
    std::int64_t compressed;  // 1 if its buffers are compressed
};
static_assert(sizeof(ArrowMessage) == 48, "messages are handed out as rows of six int64");

struct ArrowStream {
    std::vector<ArrowMessage> messages;
    bool ended = false;       // whether it ends with an end-of-stream marker, rather than with the file
    bool big_endian = false;  // according to the schema
    std::string heads;        // of all messages, one after the other, with `keep_heads`
    std::string schema;       // a message with the schema; empty if the first message has none
};

// Walks the messages of a file from byte `start` on, up to the end-of-stream marker or the end of the file. A message
// that does not fit into `size` bytes is damage. Reads only the heads, with pread: about 1 us a message if cached. The
// descriptor stays the caller's. Throws ArrowError for damage, std::system_error if the disk fails, and the exceptions
// of `reach`.
ArrowStream walk_arrow(int fd, std::uint64_t size, std::uint64_t start, bool keep_heads = false,
                       const Reach& reach = nullptr);

// Reads the messages of a file, as opposed to a stream, whose magic number is at byte `start`: the ones to which the
// footer before byte `size` refers. The bytes between them are ignored, as writers differ there. The first message is
// the footer itself, as the message of the schema. Otherwise like `walk_arrow`.
ArrowStream read_arrow_footer(int fd, std::uint64_t size, std::uint64_t start, bool keep_heads = false,
                              const Reach& reach = nullptr);

struct ArrowLayout {
    std::int64_t rows = 0;
    bool compressed = false;
    std::vector<std::int64_t> nodes;    // per field, in depth-first order: length, number of nulls
    std::vector<std::int64_t> buffers;  // per buffer: offset in the body, bytes
};

// Parses the head of a record batch, `n` bytes from its marker or length on. The body has `body` bytes. Throws
// ArrowError, with bytes from the start of the head. O(n).
ArrowLayout parse_arrow_batch(const std::uint8_t* head, std::size_t n, std::int64_t body);

}  // namespace feedline
