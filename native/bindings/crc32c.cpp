#include "feedline/crc32c.h"

#include <nanobind/nanobind.h>

#include "buffer_view.h"

namespace nb = nanobind;

namespace {

std::uint32_t checksum(nb::handle data, std::uint32_t value) {
    const feedline::bindings::BufferView view(data);
    // Below some thousand bytes handing over the GIL costs more than the sum itself.
    if (view.size() < 16384) return feedline::crc32c(view.data(), view.size(), value);
    nb::gil_scoped_release unlocked;
    return feedline::crc32c(view.data(), view.size(), value);
}

}  // namespace

void bind_crc32c(nb::module_& m) {
    m.def("crc32c", &checksum, nb::arg("data"), nb::arg("value") = 0,
          "CRC-32C of a C-contiguous buffer, continued from `value` (that of what came before).");
}
