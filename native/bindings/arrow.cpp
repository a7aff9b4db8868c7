#include "feedline/arrow.h"

#include <nanobind/nanobind.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

#include "arrays.h"
#include "buffer_view.h"
#include "reach.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using feedline::bindings::BufferView;
using feedline::bindings::Unlocked;

// ValueError(what, byte).
[[noreturn]] void raise(const feedline::ArrowError& error) {
    const nb::tuple arguments = nb::make_tuple(error.what(), error.byte);
    PyErr_SetObject(PyExc_ValueError, arguments.ptr());
    throw nb::python_error();
}

nb::object numbers(const void* data, std::size_t count) {
    const nb::object array = feedline::bindings::new_array(count, feedline::bindings::numpy().int64);
    if (count != 0) std::memcpy(feedline::bindings::memory(array), data, count * sizeof(std::int64_t));
    return array;
}

nb::tuple messages(int fd, std::uint64_t size, std::uint64_t start, bool footer, const nb::object& reach) {
    const bool keep_heads = !reach.is_none();
    const feedline::Reach make_readable = feedline::bindings::reach_of(reach);
    feedline::ArrowStream stream;
    try {
        const Unlocked unlocked;
        const auto read_messages = footer ? feedline::read_arrow_footer : feedline::walk_arrow;
        stream = read_messages(fd, size, start, keep_heads, make_readable);
    } catch (const feedline::ArrowError& error) {
        raise(error);
    } catch (const std::system_error& error) {
        errno = error.code().value();
        PyErr_SetFromErrno(PyExc_OSError);
        throw nb::python_error();
    }
    return nb::make_tuple(numbers(stream.messages.data(), 6 * stream.messages.size()), stream.ended, stream.big_endian,
                          nb::bytes(stream.heads.data(), stream.heads.size()),
                          nb::bytes(stream.schema.data(), stream.schema.size()));
}

nb::tuple batch(nb::handle head, std::int64_t body) {
    const BufferView view(head);
    try {
        const feedline::ArrowLayout layout =
            feedline::parse_arrow_batch(static_cast<const std::uint8_t*>(view.data()), view.size(), body);
        return nb::make_tuple(layout.rows, layout.compressed, numbers(layout.nodes.data(), layout.nodes.size()),
                              numbers(layout.buffers.data(), layout.buffers.size()));
    } catch (const feedline::ArrowError& error) {
        raise(error);
    }
}

}  // namespace

void bind_arrow(nb::module_& m) {
    m.def("arrow_messages", &messages, "fd"_a, "size"_a, "start"_a, "footer"_a, "reach"_a = nb::none(),
          "Read the places of the messages of an Arrow IPC stream or file that ends at byte `size`, and return\n"
          "(messages, ended, big_endian, heads, schema).\n\n"
          "footer: whether it is a file, whose footer lists the messages. A stream is walked over. reach: as for\n"
          "`TarIndexer`. messages: int64[6 * n]: kind (1 schema, 2 dictionary, 3 record batch), first byte, bytes of\n"
          "the head and of the body, rows, whether it is compressed. heads: of all messages, one after the other, or\n"
          "empty without `reach`. schema: a message with the schema. ValueError(what, byte) for damage, OSError if\n"
          "the disk fails.");
    m.def("arrow_batch", &batch, "head"_a, "body"_a,
          "Parse the head of a record batch with `body` bytes of data and return (rows, compressed, nodes, buffers).\n\n"
          "nodes: int64[2 * fields]: length and nulls. buffers: int64[2 * buffers]: offset and bytes, which are\n"
          "within the body. ValueError(what, byte) for damage.");
}
