#include "feedline/crc32c.h"

#include <nanobind/nanobind.h>

#include "buffer_view.h"

#include "faults.h"
#include "unlocked.h"
#include "feedline/guard.h"

namespace nb = nanobind;

namespace {

std::uint32_t checksum(nb::handle data, std::uint32_t value) {
    const feedline::bindings::BufferView view(data);
    std::uint32_t sum = 0;
    const auto work = [&] { sum = feedline::crc32c(view.data(), view.size(), value); };
    const void* unreadable;
    // Below some thousand bytes, releasing the GIL costs more than the sum itself.
    if (view.size() < 16384) {
        unreadable = feedline::guarded(work);
    } else {
        const feedline::bindings::Unlocked unlocked;
        unreadable = feedline::guarded(work);
    }
    if (unreadable != nullptr)
        feedline::bindings::raise_fault("unreadable", feedline::bindings::address_of(unreadable));
    return sum;
}

}  // namespace

void bind_crc32c(nb::module_& m) {
    m.def("crc32c", &checksum, nb::arg("data"), nb::arg("value") = 0,
          "Return the CRC-32C of a C-contiguous buffer, continued from `value`, the checksum of the bytes\n"
          "before it. DataError if the buffer is mapped from a file that was truncated or whose disk fails.");
}
