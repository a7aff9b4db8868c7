#include "feedline/arrow.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>
#include <unistd.h>

namespace feedline {

namespace {

constexpr std::uint32_t kMarker = 0xFFFFFFFFu;
constexpr std::size_t kPrefix = 8;               // marker, int32 bytes of metadata; before Arrow 0.15 without marker
constexpr std::size_t kFirstRead = 4096;         // most heads are shorter
constexpr std::int64_t kMaxHead = 64 << 20;      // bytes of metadata; each column takes some hundred

template <class T>
T load(const std::uint8_t* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

// The bytes of a flatbuffer.
struct Bytes {
    const std::uint8_t* data;
    std::size_t size;

    template <class T>
    T at(std::size_t offset) const {
        if (offset > size || size - offset < sizeof(T))
            throw ArrowError("metadata with an offset outside its bytes", size);
        return load<T>(data + offset);
    }
};

// A table: fields by number, each optional. The place of a field is in a vtable before the table.
class Table {
public:
    Table(const Bytes& bytes, std::size_t at) : bytes_(bytes), at_(at) {
        const std::int64_t fields = static_cast<std::int64_t>(at) - bytes.at<std::int32_t>(at);
        if (fields < 0) throw ArrowError("metadata with an offset outside its bytes", at);
        fields_ = static_cast<std::size_t>(fields);
        size_ = bytes.at<std::uint16_t>(fields_);
    }

    static Table root(const Bytes& bytes) { return Table(bytes, bytes.at<std::uint32_t>(0)); }

    // The place of a field, or 0 if it is absent.
    std::size_t place(std::size_t field) const {
        const std::size_t slot = 4 + 2 * field;
        if (slot + 2 > size_) return 0;
        const std::uint16_t offset = bytes_.at<std::uint16_t>(fields_ + slot);
        return offset == 0 ? 0 : at_ + offset;
    }

    template <class T>
    T number(std::size_t field, T absent = 0) const {
        const std::size_t at = place(field);
        return at == 0 ? absent : bytes_.at<T>(at);
    }

    // The place to which a field refers.
    std::size_t target(std::size_t field, const char* name) const {
        const std::size_t at = place(field);
        if (at == 0) throw ArrowError(std::string("metadata without ") + name, at_);
        return at + bytes_.at<std::uint32_t>(at);
    }

    // The place of a vector of structures of `bytes` bytes, and their number, 0 if it is absent.
    std::pair<std::size_t, std::size_t> vector(std::size_t field, const char* name, std::size_t bytes) const {
        if (place(field) == 0) return {0, 0};
        const std::size_t vector = target(field, name);
        const std::size_t count = bytes_.at<std::uint32_t>(vector);
        const std::size_t from = vector + 4;
        if (from > bytes_.size || count > (bytes_.size - from) / bytes)
            throw ArrowError(std::string("more ") + name + " than metadata", vector);
        return {from, count};
    }

    // Sets `out` to the numbers of a vector of structures of two int64.
    void pairs(std::size_t field, const char* name, std::vector<std::int64_t>& out) const {
        const auto [from, count] = vector(field, name, 16);
        out.resize(2 * count);
        if (count != 0) std::memcpy(out.data(), bytes_.data + from, 16 * count);
    }

    // Whether one table of a vector has this text as its first field.
    bool has_key(std::size_t field, const std::string& key) const {
        const auto [from, count] = vector(field, "custom metadata", 4);
        for (std::size_t i = 0; i < count; ++i) {
            const std::size_t entry = from + 4 * i;
            const std::size_t text = Table(bytes_, entry + bytes_.at<std::uint32_t>(entry)).target(0, "a key");
            if (bytes_.at<std::uint32_t>(text) != key.size()) continue;
            std::size_t equal = 0;
            while (equal < key.size() && bytes_.at<char>(text + 4 + equal) == key[equal]) ++equal;
            if (equal == key.size()) return true;
        }
        return false;
    }

private:
    Bytes bytes_;
    std::size_t at_, fields_ = 0, size_ = 0;
};

// The root of a message whose metadata are these bytes.
struct Message {
    explicit Message(const Bytes& message)
        : root(Table::root(message)),
          kind(root.number<std::uint8_t>(1)),
          body(root.number<std::int64_t>(3)),
          bytes(message) {}

    Table header() const { return Table(bytes, root.target(2, "a header")); }

    // Arrow 0.17 compressed before the format had a field for it.
    bool compressed(const Table& batch) const {
        return batch.place(3) != 0 || root.has_key(4, "ARROW:experimental_compression");
    }

    Table root;
    std::int64_t kind, body;
    Bytes bytes;
};

void check_rows(std::int64_t rows) {
    if (rows < 0) throw ArrowError("a batch of " + std::to_string(rows) + " rows", 0);
}

// Bytes of an open file.
struct FileBytes {
    int fd;
    std::uint64_t size;
    const Reach& reach;
    std::pair<std::uint64_t, std::uint64_t> readable{0, 0};  // range that `reach` returned last

    // Reads up to n bytes, fewer at the end of the file. Returns their number.
    std::size_t get(std::uint8_t* out, std::size_t n, std::uint64_t at) {
        if (at >= size) return 0;
        n = static_cast<std::size_t>(std::min<std::uint64_t>(n, size - at));
        if (reach && (at < readable.first || at + n > readable.second)) readable = reach(at, at + n);
        std::size_t done = 0;
        while (done < n) {
            const ssize_t got = pread(fd, out + done, n - done, static_cast<off_t>(at + done));
            if (got < 0) {
                if (errno == EINTR) continue;
                throw std::system_error(errno, std::generic_category());
            }
            if (got == 0) break;
            done += static_cast<std::size_t>(got);
        }
        return done;
    }
};

// Bytes before the metadata of a message whose first word is `word`: their length, since Arrow 0.15 after a marker.
std::size_t prefix_of(std::uint32_t word) { return word == kMarker ? kPrefix : kPrefix / 2; }

// Reads the head of the message at `at` into `head`. Returns false if an end-of-stream marker is there instead.
bool read_message(FileBytes& bytes, std::uint64_t at, std::vector<std::uint8_t>& head, ArrowMessage& message,
                  bool& big_endian) {
    if (head.size() < kFirstRead) head.resize(kFirstRead);
    std::size_t length_read = bytes.get(head.data(), kFirstRead, at);
    if (length_read < kPrefix / 2) throw ArrowError("a message that is cut", at);
    const std::size_t prefix = prefix_of(load<std::uint32_t>(head.data()));
    if (length_read < prefix) throw ArrowError("a message that is cut", at);
    const std::int64_t length = load<std::int32_t>(head.data() + prefix - 4);
    if (length == 0) return false;
    if (length < 0 || length > kMaxHead) {
        if (prefix != kPrefix) throw ArrowError("no message where one should begin", at);
        throw ArrowError("metadata of " + std::to_string(length) + " bytes", at);
    }
    const std::size_t head_bytes = prefix + static_cast<std::size_t>(length);
    if (head_bytes > bytes.size - at) throw ArrowError("a message that is cut", at);
    if (head_bytes > length_read) {
        if (head_bytes > head.size()) head.resize(head_bytes);
        length_read += bytes.get(head.data() + length_read, head_bytes - length_read, at + length_read);
        if (length_read < head_bytes) throw ArrowError("a message that is cut", at);
    }
    try {
        const Message parsed({head.data() + prefix, head_bytes - prefix});
        message = {parsed.kind, static_cast<std::int64_t>(at), static_cast<std::int64_t>(head_bytes), parsed.body, 0,
                   0};
        if (parsed.kind == kArrowSchema) {
            big_endian = parsed.header().number<std::int16_t>(0) != 0;
        } else if (parsed.kind == kArrowBatch || parsed.kind == kArrowDictionary) {
            Table batch = parsed.header();
            if (parsed.kind == kArrowDictionary) batch = Table(parsed.bytes, batch.target(1, "a dictionary"));
            message.rows = batch.number<std::int64_t>(0);
            check_rows(message.rows);
            message.compressed = parsed.compressed(batch);
        }
    } catch (const ArrowError& error) {
        throw ArrowError(error.what(), at + prefix + error.byte);
    }
    if (message.body < 0 || static_cast<std::uint64_t>(message.body) > bytes.size - at - head_bytes)
        throw ArrowError("a message that is cut: " + std::to_string(message.body) + " bytes follow its head", at);
    return true;
}

// A message with the schema of a footer: a table that refers to the footer's table, whose bytes follow.
std::string schema_message(const std::vector<std::uint8_t>& footer, std::size_t schema, std::int16_t version) {
    constexpr std::size_t kTables = 32;  // bytes before the footer
    const std::size_t length = (kTables + footer.size() + 7) / 8 * 8;
    std::string bytes(kPrefix + length, '\0');
    const auto set = [&](std::size_t at, auto value) { std::memcpy(&bytes[kPrefix + at], &value, sizeof value); };
    std::memcpy(bytes.data(), &kMarker, 4);
    set(0, std::uint32_t{16});                                         // where the table is
    const std::uint16_t fields[] = {12, 12, 8, 10, 4, 0};              // its vtable: sizes, then places of fields
    std::memcpy(&bytes[kPrefix + 4], fields, sizeof fields);
    set(16, std::int32_t{12});                                         // the table: how far before it its vtable is
    set(20, static_cast<std::uint32_t>(kTables + schema - 20));        // header
    set(24, version);
    set(26, static_cast<std::uint8_t>(kArrowSchema));
    const auto size = static_cast<std::int32_t>(length);
    std::memcpy(&bytes[4], &size, 4);
    std::memcpy(&bytes[kPrefix + kTables], footer.data(), footer.size());
    return bytes;
}

}  // namespace

ArrowStream walk_arrow(int fd, std::uint64_t size, std::uint64_t start, bool keep_heads, const Reach& reach) {
    ArrowStream stream;
    FileBytes bytes{fd, size, reach};
    std::vector<std::uint8_t> head;
    std::uint32_t first = 0;
    std::uint64_t at = start;
    while (at < size) {
        ArrowMessage message{};
        stream.ended = !read_message(bytes, at, head, message, stream.big_endian);
        // A writer marks all of its messages or none. This check keeps zeros in a damaged stream from ending it.
        const auto word = load<std::uint32_t>(head.data());
        if (at == start) first = word;
        if (prefix_of(word) != prefix_of(first)) throw ArrowError("no message where one should begin", at);
        if (stream.ended) break;
        const auto head_bytes = static_cast<std::size_t>(message.head);
        if (stream.messages.empty() && message.kind == kArrowSchema)
            stream.schema.assign(reinterpret_cast<const char*>(head.data()), head_bytes);
        stream.messages.push_back(message);
        if (keep_heads) stream.heads.append(reinterpret_cast<const char*>(head.data()), head_bytes);
        at += head_bytes + static_cast<std::uint64_t>(message.body);
    }
    return stream;
}

ArrowStream read_arrow_footer(int fd, std::uint64_t size, std::uint64_t start, bool keep_heads, const Reach& reach) {
    constexpr std::uint64_t kMagic = 6, kHead = 8, kTail = 4 + kMagic, kBlock = 24;
    FileBytes bytes{fd, size, reach};
    std::uint8_t tail[4];
    if (size < start + kHead + kTail || bytes.get(tail, 4, size - kTail) < 4) throw ArrowError("no footer", size);
    const std::int64_t length = load<std::int32_t>(tail);
    if (length <= 0 || static_cast<std::uint64_t>(length) > size - start - kHead - kTail)
        throw ArrowError("a footer of " + std::to_string(length) + " bytes", size - kTail);
    const std::uint64_t begin = size - kTail - static_cast<std::uint64_t>(length);
    std::vector<std::uint8_t> footer(static_cast<std::size_t>(length)), head;
    if (bytes.get(footer.data(), footer.size(), begin) < footer.size()) throw ArrowError("a footer that is cut", begin);

    ArrowStream stream;
    stream.ended = true;
    struct Block {
        std::int64_t kind;
        std::uint64_t place;
        std::int64_t head, body;
    };
    std::vector<Block> blocks;
    try {
        const Bytes metadata{footer.data(), footer.size()};
        const Table root = Table::root(metadata);
        const std::size_t schema = root.target(1, "a schema");
        stream.big_endian = Table(metadata, schema).number<std::int16_t>(0) != 0;
        stream.schema = schema_message(footer, schema, root.number<std::int16_t>(0));
        for (const std::int64_t kind : {kArrowDictionary, kArrowBatch}) {
            const std::size_t field = kind == kArrowDictionary ? 2 : 3;
            const auto [from, count] = root.vector(field, "blocks", kBlock);
            for (std::size_t i = 0; i < count; ++i) {
                const std::size_t at = from + kBlock * i;
                blocks.push_back({kind, static_cast<std::uint64_t>(metadata.at<std::int64_t>(at)),
                                  metadata.at<std::int32_t>(at + 8), metadata.at<std::int64_t>(at + 16)});
            }
        }
    } catch (const ArrowError& error) {
        throw ArrowError(error.what(), begin + error.byte);
    }
    stream.messages.push_back({kArrowSchema, static_cast<std::int64_t>(begin), length, 0, 0, 0});
    if (keep_heads) stream.heads.append(reinterpret_cast<const char*>(footer.data()), footer.size());
    for (const auto& [kind, place, head_bytes, body_bytes] : blocks) {
        if (place < kHead || place >= begin - start)
            throw ArrowError("a footer with a message at byte " + std::to_string(static_cast<std::int64_t>(place)), begin);
        ArrowMessage message{};
        bool ignored = false;
        if (!read_message(bytes, start + place, head, message, ignored) || message.kind != kind)
            throw ArrowError("no message where one should begin", start + place);
        // Other readers take these lengths from the footer, allocate as much, and look for the body behind the head.
        if (head_bytes != message.head || body_bytes < 0 ||
            static_cast<std::uint64_t>(body_bytes) > size - start - place - static_cast<std::uint64_t>(message.head))
            throw ArrowError("a footer with a message of " + std::to_string(head_bytes) + " and " +
                                 std::to_string(body_bytes) + " bytes, which has " + std::to_string(message.head) +
                                 " and " + std::to_string(message.body),
                             begin);
        stream.messages.push_back(message);
        if (keep_heads)
            stream.heads.append(reinterpret_cast<const char*>(head.data()), static_cast<std::size_t>(message.head));
    }
    return stream;
}

ArrowLayout parse_arrow_batch(const std::uint8_t* head, std::size_t n, std::int64_t body) {
    if (n < kPrefix) throw ArrowError("no message where one should begin", 0);
    const std::size_t prefix = prefix_of(load<std::uint32_t>(head));
    const Message parsed({head + prefix, n - prefix});
    if (parsed.kind != kArrowBatch) throw ArrowError("no record batch", prefix);
    if (parsed.body != body) throw ArrowError("a body of " + std::to_string(parsed.body) + " bytes", prefix);
    const Table batch = parsed.header();
    ArrowLayout layout;
    layout.rows = batch.number<std::int64_t>(0);
    check_rows(layout.rows);
    layout.compressed = parsed.compressed(batch);
    batch.pairs(1, "fields", layout.nodes);
    batch.pairs(2, "buffers", layout.buffers);
    for (std::size_t i = 0; i < layout.nodes.size(); i += 2)
        if (layout.nodes[i] < 0 || layout.nodes[i + 1] < 0 || layout.nodes[i + 1] > layout.nodes[i])
            throw ArrowError("a column of " + std::to_string(layout.nodes[i]) + " items, " +
                                 std::to_string(layout.nodes[i + 1]) + " of them null",
                             prefix);
    for (std::size_t i = 0; i < layout.buffers.size(); i += 2) {
        const std::int64_t offset = layout.buffers[i], size = layout.buffers[i + 1];
        if (offset < 0 || size < 0 || offset > body || size > body - offset)
            throw ArrowError("a buffer of " + std::to_string(size) + " bytes at byte " + std::to_string(offset) +
                                 " of a body of " + std::to_string(body),
                             prefix);
    }
    return layout;
}

}  // namespace feedline
