// Operations that only `picture_batch.cpp` calls.
#pragma once

#include <vector>

#include "feedline/pictures.h"

namespace feedline {

constexpr std::size_t kSlack = 32;  // bytes after the pixels that may be read

void crop_pixels(const Pixels& in, Region region, Pixels& out);
void flip_pixels(const Pixels& in, bool mirrored, bool upside_down, Pixels& out);
void pad_pixels(const Pixels& in, int left, int top, int right, int bottom, PictureBorder border,
                std::uint8_t value, Pixels& out);
// numbers: factors of brightness, contrast and saturation, the shift of the hue, and the number of their order.
void jitter_pixels(Pixels& pixels, const double* numbers, bool bgr);
// out: (value - mean) * scale of each channel, channels first if `planes`.
void write_floats(const Pixels& pixels, const std::vector<float>& mean, const std::vector<float>& scale, bool planes,
                  float* out);

}  // namespace feedline
