#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <vector>

#include "feedline/cpu.h"
#include "feedline/pictures.h"
#include "picture_ops.h"
#include "picture_variants.h"

namespace feedline {

// With more bytes than pixels have, as vector loads read beyond the last one.
void Pixels::reserve(std::size_t size) {
    if (size + kSlack + kUnalignedBytes > capacity_) {
        memory_.reset(new std::uint8_t[size + kSlack + kUnalignedBytes]);
        capacity_ = size + kSlack + kUnalignedBytes;
    }
    before_ = std::size_t(unaligned(memory_.get()) - memory_.get());
}

void Pixels::reshape(int w, int h, int c) {
    width = w, height = h, channels = c;
    reserve(size());
    pitch_ = stride();
}

void Pixels::reshape_loose(int w, int h, int c, std::size_t before, std::size_t pitch) {
    width = w, height = h, channels = c;
    pitch_ = (pitch + kUnalignedBytes - 1) / kUnalignedBytes * kUnalignedBytes;
    reserve(pitch_ * std::size_t(h));
    before_ += before;
}

// ---- turning ------------------------------------------------------------------------------------------------

namespace {

struct Turn {
    bool transposed, mirrored, upside_down;
};

Turn turn_of(int orientation) {
    const int o = orientation;
    return {o >= 5, o == 2 || o == 3 || o == 6 || o == 7, o == 3 || o == 4 || o == 7 || o == 8};
}

}  // namespace

Region stored_region(Region r, int orientation, int width, int height) {
    const Turn turn = turn_of(orientation);
    const int across = turn.transposed ? height : width, down = turn.transposed ? width : height;
    if (turn.mirrored) r.x = across - r.x - r.width;
    if (turn.upside_down) r.y = down - r.y - r.height;
    return turn.transposed ? Region{r.y, r.x, r.height, r.width} : r;
}

void turn_upright(const Pixels& in, int orientation, Pixels& out) {
    const Turn turn = turn_of(orientation);
    const int channels = in.channels;
    out.reshape(turn.transposed ? in.height : in.width, turn.transposed ? in.width : in.height, channels);
    for (int y = 0; y < out.height; ++y) {
        const int v = turn.upside_down ? out.height - 1 - y : y;
        std::uint8_t* to = out.row(y);
        for (int x = 0; x < out.width; ++x, to += channels) {
            const int u = turn.mirrored ? out.width - 1 - x : x;
            const std::uint8_t* from =
                turn.transposed ? in.row(u) + std::size_t(v * channels) : in.row(v) + std::size_t(u * channels);
            for (int c = 0; c < channels; ++c) to[c] = from[c];
        }
    }
}

// ---- crops, flips, padding, floats --------------------------------------------------------------------------

void crop_pixels(const Pixels& in, Region r, Pixels& out) {
    out.reshape(r.width, r.height, in.channels);
    const std::size_t offset = std::size_t(r.x) * std::size_t(in.channels);
    for (int y = 0; y < r.height; ++y) std::memcpy(out.row(y), in.row(r.y + y) + offset, out.stride());
}

namespace {

void mirror_row(const std::uint8_t* from, std::size_t width, std::size_t channels, std::uint8_t* to) {
#ifdef FEEDLINE_X86
    if (channels == 3 && cpu().avx2) return mirror_row_avx2(from, width, to);
#endif
    for (std::size_t x = 0; x < width; ++x)
        for (std::size_t c = 0; c < channels; ++c) to[x * channels + c] = from[(width - 1 - x) * channels + c];
}

}  // namespace

void flip_pixels(const Pixels& in, bool mirrored, bool upside_down, Pixels& out) {
    out.reshape(in.width, in.height, in.channels);
    for (int y = 0; y < in.height; ++y) {
        const std::uint8_t* from = in.row(upside_down ? in.height - 1 - y : y);
        if (mirrored)
            mirror_row(from, std::size_t(in.width), std::size_t(in.channels), out.row(y));
        else
            std::memcpy(out.row(y), from, in.stride());
    }
}

namespace {

// The pixel of n that is repeated at a place beyond them.
int beyond(int at, int n, PictureBorder border) {
    if (border == PictureBorder::edge) return std::clamp(at, 0, n - 1);
    const bool twice = border == PictureBorder::symmetric;  // whether the outermost pixels are repeated
    if (n == 1) return 0;
    const std::int64_t period = twice ? 2 * std::int64_t{n} : 2 * std::int64_t{n} - 2;
    const std::int64_t in_period = (at % period + period) % period;
    return static_cast<int>(in_period < n ? in_period : period - in_period - (twice ? 1 : 0));
}

}  // namespace

void pad_pixels(const Pixels& in, int left, int top, int right, int bottom, PictureBorder border, std::uint8_t value,
                Pixels& out) {
    const std::size_t channels = std::size_t(in.channels);
    const bool constant = border == PictureBorder::constant;
    out.reshape(left + in.width + right, top + in.height + bottom, in.channels);
    for (int y = 0; y < out.height; ++y) {
        std::uint8_t* to = out.row(y);
        const int at = y - top;
        if (constant && (at < 0 || at >= in.height)) {
            std::memset(to, value, out.stride());
            continue;
        }
        const std::uint8_t* from = in.row(constant ? at : beyond(at, in.height, border));
        std::uint8_t *middle = to + std::size_t(left) * channels, *end = middle + in.stride();
        std::memcpy(middle, from, in.stride());
        if (constant) {
            std::memset(to, value, std::size_t(left) * channels);
            std::memset(end, value, std::size_t(right) * channels);
            continue;
        }
        for (int x = 0; x < left; ++x)
            std::memcpy(to + std::size_t(x) * channels,
                        from + std::size_t(beyond(x - left, in.width, border)) * channels, channels);
        for (int x = 0; x < right; ++x)
            std::memcpy(end + std::size_t(x) * channels,
                        from + std::size_t(beyond(in.width + x, in.width, border)) * channels, channels);
    }
}

// ---- results ------------------------------------------------------------------------------------------------

PictureResult::PictureResult(const PictureBatchOptions& options, void* out, bool mirrored, bool upside_down)
    : options_(options),
      out_(out),
      mirrored_(mirrored),
      upside_down_(upside_down),
      channels_(options.color == PictureColor::grey ? 1 : 3) {
    if (mirrored) line_.resize(std::size_t(options.width) * channels_ + kSlack);
    if (!options.floats) return;
#ifdef FEEDLINE_X86
    if (channels_ == 3 && cpu().avx2) return;
#endif
    tables_.resize(256 * channels_);
    for (std::size_t c = 0; c < channels_; ++c)
        for (std::size_t v = 0; v < 256; ++v) tables_[256 * c + v] = (float(v) - options.mean[c]) * options.scale[c];
}

std::uint8_t* PictureResult::unchanged() const {
    return mirrored_ || upside_down_ || options_.floats ? nullptr : static_cast<std::uint8_t*>(out_);
}

void PictureResult::take(int y, const std::uint8_t* row) noexcept {
    const std::size_t width = std::size_t(options_.width), at = std::size_t(upside_down_ ? options_.height - 1 - y : y);
    if (mirrored_) {
        mirror_row(row, width, channels_, line_.data());
        row = line_.data();
    }
    const std::size_t first = at * width * (options_.floats && options_.planes ? 1 : channels_);
    if (options_.floats)
        write_floats(row, static_cast<float*>(out_) + first);
    else
        std::memcpy(static_cast<std::uint8_t*>(out_) + first, row, width * channels_);
}

void PictureResult::write_floats(const std::uint8_t* row, float* out) const {
    const std::size_t width = std::size_t(options_.width);
    const std::size_t plane = options_.planes ? width * std::size_t(options_.height) : 0;
    if (tables_.empty()) {
#ifdef FEEDLINE_X86
        write_floats_avx2(row, width, options_.mean.data(), options_.scale.data(), plane, out);
#endif
        return;
    }
    const std::size_t across = plane != 0 ? 1 : channels_, to_next = plane != 0 ? plane : 1;
    for (std::size_t c = 0; c < channels_; ++c) {
        const float* table = tables_.data() + 256 * c;
        float* to = out + c * to_next;
        for (std::size_t x = 0; x < width; ++x) to[x * across] = table[row[x * channels_ + c]];
    }
}

}  // namespace feedline
