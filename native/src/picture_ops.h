// Operations that only `picture_batch.cpp` calls.
#pragma once

#include <vector>

#include "feedline/pictures.h"

namespace feedline {

constexpr std::size_t kSlack = 32;  // bytes after the pixels that may be read

// libjpeg-turbo writes past all caches where a row begins at a multiple of 32, and reading it back takes longer than
// the crop's copy should. So no row begins there.
constexpr std::size_t kUnalignedBytes = 32;

// The first place from `memory` on that is 16 bytes after a multiple of 32. It is less than 32 bytes away.
inline std::uint8_t* unaligned(std::uint8_t* memory) {
    return memory + (48 - reinterpret_cast<std::uintptr_t>(memory) % 32) % 32;
}

void crop_pixels(const Pixels& in, Region region, Pixels& out);
void flip_pixels(const Pixels& in, bool mirrored, bool upside_down, Pixels& out);
void pad_pixels(const Pixels& in, int left, int top, int right, int bottom, PictureBorder border,
                std::uint8_t value, Pixels& out);
// numbers: factors of brightness, contrast and saturation, the shift of the hue, and the number of their order.
void jitter_pixels(Pixels& pixels, const double* numbers, bool bgr);

// Writes a picture of the result's size into a batch's memory, flipped, and as numbers if the batch has floats.
class PictureResult final : public PictureRows {
  public:
    // Throws std::bad_alloc.
    PictureResult(const PictureBatchOptions& options, void* out, bool mirrored, bool upside_down);
    void take(int y, const std::uint8_t* row) noexcept override;

    // The memory of the rows if they are written as they come, or null.
    std::uint8_t* unchanged() const;

  private:
    void write_floats(const std::uint8_t* row, float* out) const;

    const PictureBatchOptions& options_;
    void* const out_;
    const bool mirrored_, upside_down_;
    const std::size_t channels_;
    std::vector<std::uint8_t> line_;
    std::vector<float> tables_;  // of the levels of each channel, for portable code
};

}  // namespace feedline
