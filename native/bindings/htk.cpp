#include "feedline/htk.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "arrays.h"
#include "buffer_view.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using feedline::bindings::raise;

template <class T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void decode(nb::handle data, int kind, bool swapped, Input<float> scale, Input<float> offset,
            nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu> out) {
    const feedline::bindings::BufferView view(data);
    const std::size_t count = out.shape(0), dim = out.shape(1);
    if (kind < 0 || kind > 2) raise<nb::value_error>({"expected a kind of 0, 1 or 2, got ", kind});
    const feedline::HtkFrames frames{static_cast<feedline::HtkKind>(kind), swapped, dim, scale.data(), offset.data()};
    if (frames.kind == feedline::HtkKind::compressed && (scale.size() != dim || offset.size() != dim))
        raise<nb::value_error>({"expected a scale and an offset for each of ", dim, " values, got ", scale.size(),
                                " and ", offset.size()});
    if (dim == 0 || count > view.size() / frames.frame_bytes())
        raise<nb::value_error>({"expected frames within the ", view.size(), " bytes of data, got ", count, " frames of ",
                                frames.frame_bytes(), " bytes"});
    const feedline::bindings::Unlocked unlocked;
    feedline::decode_htk(static_cast<const std::uint8_t*>(view.data()), frames, count, out.data());
}

}  // namespace

void bind_htk(nb::module_& m) {
    m.def("htk_decode", &decode, "data"_a, "kind"_a, "swapped"_a, "scale"_a, "offset"_a, "out"_a,
          "Decode the first frames in `data` into float32 `out` (frames, values).\n\n"
          "kind: 0 float32, 1 compressed int16, 2 bytes. ValueError for arguments that do not fit.");
}
