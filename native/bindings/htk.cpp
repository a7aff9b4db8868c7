#include "feedline/htk.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <memory>

#include "arrays.h"
#include "buffer_view.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using feedline::bindings::raise;

template <class T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void expand(nb::handle data, int kind, bool swapped, std::int64_t dim, Input<float> scale, Input<float> offset,
            Input<std::int64_t> lengths, std::int64_t left, std::int64_t right,
            nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu> out) {
    constexpr std::int64_t limit = std::int64_t{1} << 31;
    const feedline::bindings::BufferView view(data);
    if (kind < 0 || kind > 2) raise<nb::value_error>({"expected a kind of 0, 1 or 2, got ", kind});
    if (dim < 1 || dim >= limit || left < 0 || left >= limit || right < 0 || right >= limit)
        raise<nb::value_error>({"expected dim from 1, left and right from 0, all below 2**31, got ", dim, ", ", left,
                                " and ", right});
    const auto size = static_cast<std::size_t>(dim);
    const feedline::HtkFrames frames{static_cast<feedline::HtkKind>(kind), swapped, size, scale.data(), offset.data()};
    if (frames.kind == feedline::HtkKind::compressed && (scale.size() != size || offset.size() != size))
        raise<nb::value_error>({"expected a scale and an offset for each of ", size, " values, got ", scale.size(),
                                " and ", offset.size()});
    std::int64_t total = 0, longest = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        const std::int64_t length = lengths.data()[i];
        if (length < 1 || length >= limit)
            raise<nb::value_error>({"expected lengths from 1 to below 2**31, got ", length, " at ", i});
        total += length;
        longest = std::max(longest, length);
    }
    if (static_cast<std::size_t>(total) > view.size() / frames.frame_bytes())
        raise<nb::value_error>({"expected utterances within the ", view.size(), " bytes of data, got ", total,
                                " frames of ", frames.frame_bytes(), " bytes"});
    const auto slots = static_cast<std::size_t>(left + 1 + right);
    if (out.shape(0) != static_cast<std::size_t>(total) || out.shape(1) != slots * size)
        raise<nb::value_error>({"expected `out` of shape (", total, ", ", slots * size, "), got (", out.shape(0), ", ",
                                out.shape(1), ")"});
    std::unique_ptr<float[]> scratch;
    if (slots > 1) scratch.reset(new float[static_cast<std::size_t>(longest) * size]);
    const feedline::bindings::Unlocked unlocked;
    feedline::expand_htk(static_cast<const std::uint8_t*>(view.data()), frames, lengths.data(), lengths.size(),
                         static_cast<std::size_t>(left), static_cast<std::size_t>(right), scratch.get(), out.data());
}

}  // namespace

void bind_htk(nb::module_& m) {
    m.def("htk_expand", &expand, "data"_a, "kind"_a, "swapped"_a, "dim"_a, "scale"_a, "offset"_a, "lengths"_a, "left"_a,
          "right"_a, "out"_a,
          "Decode utterances that are one after the other in `data` into float32 `out` (frames, (left + 1 + right) *\n"
          "dim), each frame with its neighbours.\n\n"
          "kind: 0 float32, 1 compressed int16, 2 bytes. ValueError for arguments that do not fit.");
}
