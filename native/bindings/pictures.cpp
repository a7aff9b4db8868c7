#include "feedline/pictures.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;
using feedline::bindings::raise;
using feedline::bindings::Unlocked;

namespace {

template <class T>
using Row = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Raw = nb::ndarray<const std::uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

void check_bounds(const Row<std::uint8_t>& data, const Row<std::int64_t>& bounds) {
    if (bounds.size() == 0) throw nb::value_error("expected at least one bound, got none");
    std::int64_t before = 0;
    for (std::size_t i = 0; i < bounds.size(); ++i) {
        const std::int64_t at = bounds.data()[i];
        if (at < before || static_cast<std::uint64_t>(at) > data.size())
            raise<nb::value_error>({"expected bounds that ascend within the ", data.size(), " bytes of data, got ", at,
                                    " after ", before});
        before = at;
    }
}

nb::object picture_headers(const Row<std::uint8_t>& data, const Row<std::int64_t>& bounds) {
    check_bounds(data, bounds);
    const std::size_t n = bounds.size() - 1;
    const nb::object out = feedline::bindings::new_array(5 * n, feedline::bindings::numpy().int32);
    auto* to = feedline::bindings::data_of<std::int32_t>(out);
    {
        const Unlocked unlocked;
        for (std::size_t i = 0; i < n; ++i, to += 5) {
            const std::int64_t at = bounds.data()[i];
            const auto header = feedline::read_picture_header(data.data() + at, std::size_t(bounds.data()[i + 1] - at));
            to[0] = header.format, to[1] = header.width, to[2] = header.height, to[3] = header.components;
            to[4] = header.orientation;
        }
    }
    return out.attr("reshape")(n, 5);
}

nb::object uniforms(std::uint64_t seed, const Row<std::int64_t>& sweeps, const Row<std::int64_t>& ordinals,
                    std::uint64_t stage, std::uint64_t step, std::size_t count) {
    const std::size_t n = sweeps.size();
    if (ordinals.size() != n)
        raise<nb::value_error>({"expected `sweeps` and `ordinals` of equal length, got ", n, " and ", ordinals.size()});
    const nb::object out = feedline::bindings::numpy().empty(nb::make_tuple(n, count));
    auto* to = feedline::bindings::data_of<double>(out);
    {
        const Unlocked unlocked;
        feedline::keyed_uniforms(seed, sweeps.data(), ordinals.data(), n, stage, step, count, to);
    }
    return out;
}

// A batch, and references to its arrays.
class Batch {
  public:
    Batch(Row<std::uint8_t> data, Row<std::int64_t> bounds, nb::dict pixels, Row<std::uint8_t> kinds, Numbers params,
          nb::ndarray<nb::c_contig, nb::device::cpu> out, int color, bool upright, bool shrink, int threads,
          std::int64_t max_pixels, std::optional<Row<float>> mean, std::optional<Row<float>> scale, bool chw)
        : data_(std::move(data)), bounds_(std::move(bounds)), params_(std::move(params)), out_(std::move(out)) {
        check_bounds(data_, bounds_);
        feedline::PictureBatchOptions options;
        options.data = data_.data(), options.bounds = bounds_.data(), options.n = bounds_.size() - 1;
        if (color < 0 || color > 2) raise<nb::value_error>({"expected 0, 1 or 2 as color, got ", color});
        if (threads < 1 || max_pixels < 1)
            raise<nb::value_error>({"expected threads and max_pixels of at least 1, got ", threads, " and ",
                                    max_pixels});
        options.color = static_cast<feedline::PictureColor>(color);
        options.upright = upright, options.shrink = shrink, options.threads = threads;
        options.max_pixels = std::min<std::int64_t>(max_pixels, std::int64_t{1} << 30);
        for (std::size_t k = 0; k < kinds.size(); ++k) {
            const int arity = feedline::picture_op_arity(kinds.data()[k]);
            if (arity == 0) raise<nb::value_error>({"expected kinds of operations from 1 to 5, got ", kinds.data()[k]});
            options.kinds.push_back(kinds.data()[k]);
            options.numbers += std::size_t(arity);
        }
        if (params_.shape(0) != options.n || params_.shape(1) != options.numbers)
            raise<nb::value_error>({"expected numbers of shape (", options.n, ", ", options.numbers, "), got (",
                                    params_.shape(0), ", ", params_.shape(1), ")"});
        check_numbers(options);
        options.params = params_.data();
        const std::size_t channels = color == 2 ? 1 : 3;
        if (mean.has_value() != scale.has_value())
            throw nb::value_error("expected mean and scale together, got one of them");
        options.floats = mean.has_value(), options.planes = chw && options.floats;
        if (options.floats) {
            if (mean->size() != channels || scale->size() != channels)
                raise<nb::value_error>({"expected a mean and a scale for each of ", channels, " channels, got ",
                                        mean->size(), " and ", scale->size()});
            options.mean.assign(mean->data(), mean->data() + channels);
            options.scale.assign(scale->data(), scale->data() + channels);
        }
        const bool fits = out_.ndim() == 4 && out_.shape(0) == options.n &&
                          out_.shape(options.planes ? 1 : 3) == channels &&
                          out_.dtype() == (options.floats ? nb::dtype<float>() : nb::dtype<std::uint8_t>());
        if (!fits)
            throw nb::value_error("expected `out` as one contiguous array for all pictures, got another shape or dtype");
        const std::size_t height = out_.shape(options.planes ? 2 : 1), width = out_.shape(options.planes ? 3 : 2);
        if (height > std::size_t(options.max_pixels) || width > std::size_t(options.max_pixels))
            raise<nb::value_error>({"expected results of at most ", options.max_pixels, " pixels, got ", width, " x ",
                                    height});
        options.height = static_cast<int>(height), options.width = static_cast<int>(width);
        options.out = out_.data();
        for (const auto& [key, value] : pixels) {
            const auto i = nb::cast<std::size_t>(key);
            auto raw = nb::cast<Raw>(value);
            if (i >= options.n || raw.shape(2) != channels || raw.size() == 0 || raw.shape(0) > 1u << 30 ||
                raw.shape(1) > 1u << 30)
                raise<nb::value_error>({"expected pixels as uint8 (height, width, ", channels,
                                        ") by number of a picture, got ", "another shape for number ", i});
            options.raw.resize(options.n);
            options.raw[i] = {raw.data(), static_cast<int>(raw.shape(1)), static_cast<int>(raw.shape(0))};
            raw_.push_back(std::move(raw));
        }
        batch_ = std::make_unique<feedline::PictureBatch>(std::move(options));
    }

    ~Batch() {
        if (batch_ == nullptr) return;
        const Unlocked unlocked;
        batch_.reset();
    }

    std::vector<std::pair<std::size_t, std::string>> result() {
        const Unlocked unlocked;
        return batch_->finish();
    }

    bool done() const { return batch_->done(); }
    double seconds() const { return batch_->seconds(); }

  private:
    // The parameters become ints, which must not overflow.
    void check_numbers(const feedline::PictureBatchOptions& options) const {
        for (std::size_t k = 0; k < options.n * options.numbers; ++k)
            if (!(std::abs(params_.data()[k]) <= 1 << 30)) throw nb::value_error("expected numbers of at most 2**30");
        const double* row = params_.data();
        for (std::size_t i = 0; i < options.n; ++i)
            for (const std::uint8_t kind : options.kinds) {
                const bool resize = kind == static_cast<std::uint8_t>(feedline::PictureOp::resize);
                const bool jitter = kind == static_cast<std::uint8_t>(feedline::PictureOp::jitter);
                if (resize && !(row[2] >= 0 && row[2] <= 5)) throw nb::value_error("expected a filter from 0 to 5");
                if (jitter && !(row[4] >= 0 && row[4] < 24)) throw nb::value_error("expected an order from 0 to 23");
                const bool pad = kind == static_cast<std::uint8_t>(feedline::PictureOp::pad);
                if (pad && !(row[4] >= 0 && row[4] <= 3)) throw nb::value_error("expected a border from 0 to 3");
                if (pad && !(row[5] >= 0 && row[5] <= 255)) throw nb::value_error("expected a value from 0 to 255");
                row += feedline::picture_op_arity(kind);
            }
    }

    Row<std::uint8_t> data_;
    Row<std::int64_t> bounds_;
    Numbers params_;
    nb::ndarray<nb::c_contig, nb::device::cpu> out_;
    std::vector<Raw> raw_;
    std::unique_ptr<feedline::PictureBatch> batch_;
};

}  // namespace

void bind_pictures(nb::module_& m) {
    m.attr("NATIVE_JPEG") = feedline::jpeg_version();
    m.def("picture_headers", &picture_headers, "data"_a, "bounds"_a,
          "Return format, width, height, components and orientation of encoded pictures, int32 (n, 5). ValueError for\n"
          "bounds outside the data.");
    m.def("uniforms", &uniforms, "seed"_a, "sweeps"_a, "ordinals"_a, "stage"_a, "step"_a, "count"_a,
          "Return random numbers in [0, 1), float64 (n, count), as a function of the arguments.");
    nb::class_<Batch>(m, "PictureBatch", "Pictures that native threads decode and transform.")
        .def(nb::init<Row<std::uint8_t>, Row<std::int64_t>, nb::dict, Row<std::uint8_t>, Numbers,
                      nb::ndarray<nb::c_contig, nb::device::cpu>, int, bool, bool, int, std::int64_t,
                      std::optional<Row<float>>, std::optional<Row<float>>, bool>(),
             "data"_a, "bounds"_a, "pixels"_a, "kinds"_a, "params"_a, nb::kw_only(), "out"_a, "color"_a, "upright"_a,
             "shrink"_a = false, "threads"_a = 1, "max_pixels"_a = std::int64_t{1} << 27, "mean"_a = nb::none(),
             "scale"_a = nb::none(), "chw"_a = false)
        .def("result", &Batch::result, "Wait, and return the pictures that could not be decoded: (index, fault in words).")
        .def_prop_ro("done", &Batch::done, "Whether result() would return at once.")
        .def_prop_ro("seconds", &Batch::seconds, "Seconds that all threads have spent so far.");
}
