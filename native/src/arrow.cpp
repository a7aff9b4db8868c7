#include "feedline/arrow.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>
#include <unistd.h>

namespace feedline {

namespace {

constexpr std::size_t kPrefix = 8;               // FF FF FF FF, int32 bytes of metadata
constexpr std::size_t kFirstRead = 4096;         // most heads are shorter
constexpr std::int64_t kMostHead = 64 << 20;     // bytes of metadata; each column takes some hundred

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
            throw ArrowError("metadata that points outside of itself", size);
        return load<T>(data + offset);
    }
};

// A table: fields by number, each optional. A field's place is looked up in a vtable before the table.
class Table {
public:
    Table(const Bytes& bytes, std::size_t at) : bytes_(bytes), at_(at) {
        const std::int64_t fields = static_cast<std::int64_t>(at) - bytes.at<std::int32_t>(at);
        if (fields < 0) throw ArrowError("metadata that points outside of itself", at);
        fields_ = static_cast<std::size_t>(fields);
        size_ = bytes.at<std::uint16_t>(fields_);
    }

    static Table root(const Bytes& bytes) { return Table(bytes, bytes.at<std::uint32_t>(0)); }

    // The place of a field; 0: it is absent.
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

    // What a field refers to.
    std::size_t target(std::size_t field, const char* name) const {
        const std::size_t at = place(field);
        if (at == 0) throw ArrowError(std::string("metadata without ") + name, at_);
        return at + bytes_.at<std::uint32_t>(at);
    }

    // Appends the pairs of a vector of structures of two int64.
    void pairs(std::size_t field, const char* name, std::vector<std::int64_t>& out) const {
        if (place(field) == 0) return;
        const std::size_t vector = target(field, name);
        const std::size_t count = bytes_.at<std::uint32_t>(vector);
        const std::size_t from = vector + 4;
        if (from > bytes_.size || count > (bytes_.size - from) / 16)
            throw ArrowError(std::string("more ") + name + " than metadata", vector);
        out.resize(2 * count);
        if (count != 0) std::memcpy(out.data(), bytes_.data + from, 16 * count);
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
    std::pair<std::uint64_t, std::uint64_t> within{0, 0};  // what was reached last

    // Up to n bytes, fewer at the end of the file.
    std::size_t get(std::uint8_t* out, std::size_t n, std::uint64_t at) {
        if (at >= size) return 0;
        n = static_cast<std::size_t>(std::min<std::uint64_t>(n, size - at));
        if (reach && (at < within.first || at + n > within.second)) within = reach(at, at + n);
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

}  // namespace

ArrowStream walk_arrow(int fd, std::uint64_t size, std::uint64_t start, bool keep_heads, const Reach& reach) {
    ArrowStream found;
    FileBytes bytes{fd, size, reach};
    std::vector<std::uint8_t> head(kFirstRead);
    std::uint64_t at = start;
    while (at < size) {
        std::size_t held = bytes.get(head.data(), kFirstRead, at);
        if (held < kPrefix) throw ArrowError("a message that is cut", at);
        if (load<std::uint32_t>(head.data()) != 0xFFFFFFFFu) throw ArrowError("no message where one should begin", at);
        const std::int64_t length = load<std::int32_t>(head.data() + 4);
        if (length == 0) {
            found.ended = true;
            break;
        }
        if (length < 0 || length > kMostHead) throw ArrowError("metadata of " + std::to_string(length) + " bytes", at);
        const std::size_t whole = kPrefix + static_cast<std::size_t>(length);
        if (whole > size - at) throw ArrowError("a message that is cut", at);
        if (whole > held) {
            if (whole > head.size()) head.resize(whole);
            held += bytes.get(head.data() + held, whole - held, at + held);
            if (held < whole) throw ArrowError("a message that is cut", at);
        }
        ArrowMessage message{};
        try {
            const Message parsed({head.data() + kPrefix, whole - kPrefix});
            message = {parsed.kind, static_cast<std::int64_t>(at), static_cast<std::int64_t>(whole), parsed.body, 0, 0};
            if (parsed.kind == kArrowSchema) {
                found.big_endian = parsed.header().number<std::int16_t>(0) != 0;
            } else if (parsed.kind == kArrowBatch || parsed.kind == kArrowDictionary) {
                Table batch = parsed.header();
                if (parsed.kind == kArrowDictionary) batch = Table(parsed.bytes, batch.target(1, "a dictionary"));
                message.rows = batch.number<std::int64_t>(0);
                check_rows(message.rows);
                message.compressed = batch.place(3) != 0;
            }
        } catch (const ArrowError& error) {
            throw ArrowError(error.what(), at + kPrefix + error.byte);
        }
        if (message.body < 0 || static_cast<std::uint64_t>(message.body) > size - at - whole)
            throw ArrowError("a message that is cut: " + std::to_string(message.body) + " bytes follow its head", at);
        found.messages.push_back(message);
        if (keep_heads) found.heads.append(reinterpret_cast<const char*>(head.data()), whole);
        at += whole + static_cast<std::uint64_t>(message.body);
    }
    return found;
}

ArrowLayout parse_arrow_batch(const std::uint8_t* head, std::size_t n, std::int64_t body) {
    if (n < kPrefix || load<std::uint32_t>(head) != 0xFFFFFFFFu) throw ArrowError("no message where one should begin", 0);
    const Message parsed({head + kPrefix, n - kPrefix});
    if (parsed.kind != kArrowBatch) throw ArrowError("no record batch", kPrefix);
    if (parsed.body != body) throw ArrowError("a body of " + std::to_string(parsed.body) + " bytes", kPrefix);
    const Table batch = parsed.header();
    ArrowLayout found;
    found.rows = batch.number<std::int64_t>(0);
    check_rows(found.rows);
    found.compressed = batch.place(3) != 0;
    batch.pairs(1, "fields", found.nodes);
    batch.pairs(2, "buffers", found.buffers);
    for (std::size_t i = 0; i < found.nodes.size(); i += 2)
        if (found.nodes[i] < 0 || found.nodes[i + 1] < 0 || found.nodes[i + 1] > found.nodes[i])
            throw ArrowError("a column of " + std::to_string(found.nodes[i]) + " items, " +
                                 std::to_string(found.nodes[i + 1]) + " of them null",
                             kPrefix);
    for (std::size_t i = 0; i < found.buffers.size(); i += 2) {
        const std::int64_t offset = found.buffers[i], size = found.buffers[i + 1];
        if (offset < 0 || size < 0 || offset > body || size > body - offset)
            throw ArrowError("a buffer of " + std::to_string(size) + " bytes at byte " + std::to_string(offset) +
                                 " of a body of " + std::to_string(body),
                             kPrefix);
    }
    return found;
}

}  // namespace feedline
