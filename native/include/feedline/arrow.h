// SPDX-License-Identifier: Apache-2.0
// Where the messages of an Arrow IPC stream lie, and the buffers of a record batch: read from the flatbuffers that
// describe them. No byte of them is trusted: every offset is compared with the bytes that are there before it is
// followed, and buffers must lie within their message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "feedline/reach.h"

namespace feedline {

// Damage, and the byte at which it was detected.
class ArrowError : public std::runtime_error {
public:
    ArrowError(const std::string& what, std::size_t at) : std::runtime_error(what), byte(at) {}
    std::size_t byte;
};

// Kinds of messages, by their number in the format.
enum ArrowKind : std::int64_t { kArrowSchema = 1, kArrowDictionary = 2, kArrowBatch = 3 };

// One message of a stream; `start` counts from the start of the file.
struct ArrowMessage {
    std::int64_t kind;
    std::int64_t start;
    std::int64_t head;        // bytes before the body: marker (none before Arrow 0.15), length, metadata
    std::int64_t body;        // bytes of the body
    std::int64_t rows;        // of a record batch or a dictionary, else 0
    std::int64_t compressed;  // whether its buffers are
};
static_assert(sizeof(ArrowMessage) == 48, "messages are handed out as rows of six int64");

struct ArrowStream {
    std::vector<ArrowMessage> messages;
    bool ended = false;       // an end-of-stream marker was found, rather than the end of the file
    bool big_endian = false;  // says the schema
    std::string heads;        // of all messages, one after the other, if they were wanted
    std::string schema;       // a message with the schema; empty if the first message has none
};

// Walks the messages of a file from byte `start` on, up to the end-of-stream marker or the end of the file; a message
// that does not fit into `size` bytes is damage. Reads the heads only, with pread: about 1 us a message if cached.
// Throws ArrowError for damage, std::system_error if the disk fails, and what `reach` throws.
ArrowStream walk_arrow(int fd, std::uint64_t size, std::uint64_t start, bool keep_heads = false,
                       const Reach& reach = nullptr);

// Reads the messages of a file, as opposed to a stream, whose magic number is at byte `start`: those that the footer
// before byte `size` refers to. Nothing between them is looked at, as writers differ there. The first message is the
// footer itself, as that of the schema. Otherwise like `walk_arrow`.
ArrowStream read_arrow_footer(int fd, std::uint64_t size, std::uint64_t start, bool keep_heads = false,
                              const Reach& reach = nullptr);

struct ArrowLayout {
    std::int64_t rows = 0;
    bool compressed = false;
    std::vector<std::int64_t> nodes;    // per field, in depth-first order: length, number of nulls
    std::vector<std::int64_t> buffers;  // per buffer: offset in the body, bytes
};

// Parses the head of a record batch, `n` bytes from its marker or length on, whose body has `body` bytes. O(n).
// Throws ArrowError.
ArrowLayout parse_arrow_batch(const std::uint8_t* head, std::size_t n, std::int64_t body);

}  // namespace feedline
