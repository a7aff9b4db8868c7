#include "feedline/htk.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <memory>

#include "buffer_view.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <class T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void expand(nb::handle data, int kind, bool swapped, std::int64_t dim, Input<float> scale, Input<float> offset,
            Input<std::int64_t> lengths, std::int64_t left, std::int64_t right,
            nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu> out) {
    constexpr std::int64_t most = std::int64_t{1} << 31;
    const feedline::bindings::BufferView view(data);
    if (kind < 0 || kind > 2) throw nb::value_error("kind must be 0, 1 or 2");
    if (dim < 1 || dim >= most || left < 0 || left >= most || right < 0 || right >= most)
        throw nb::value_error("expected dim from 1, left and right from 0, all below 2**31");
    const auto size = static_cast<std::size_t>(dim);
    const feedline::HtkFrames frames{static_cast<feedline::HtkKind>(kind), swapped, size, scale.data(), offset.data()};
    if (frames.kind == feedline::HtkKind::compressed && (scale.size() != size || offset.size() != size))
        throw nb::value_error("compressed frames need a scale and an offset for each value");
    std::int64_t total = 0, longest = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        const std::int64_t length = lengths.data()[i];
        if (length < 1 || length >= most) throw nb::value_error("expected lengths from 1, below 2**31");
        total += length;
        longest = std::max(longest, length);
    }
    if (static_cast<std::size_t>(total) > view.size() / frames.frame_bytes())
        throw nb::value_error("the utterances do not lie in the data");
    const auto slots = static_cast<std::size_t>(left + 1 + right);
    if (out.shape(0) != static_cast<std::size_t>(total) || out.shape(1) != slots * size)
        throw nb::value_error("`out` must have a row for each frame, of all its neighbours");
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
          "Decodes utterances that lie one after the other in `data` into float32 `out` (frames, (left + 1 + right) * "
          "dim), each frame with its neighbours. kind 0: float32, 1: compressed int16, 2: bytes.");
}
