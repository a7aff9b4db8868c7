// SPDX-License-Identifier: Apache-2.0
// Pictures: headers, JPEG through libjpeg-turbo, operations on pixels, and batches of them in threads.
//
// A picture's program is a list of operations, which run one after the other on uint8 pixels. The last one writes into
// the batch's memory. If the first is a crop, only its region is decoded. The result has the same bits for any number
// of threads and any batch, whether the region or the whole picture was decoded. No input is trusted: damaged, cut and
// oversized pictures are refused with a message, and memory is allocated only after the number of pixels was checked.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace feedline {

enum class PictureFormat : std::int32_t { unknown = 0, jpeg = 1, png = 2, other = 3 };

// The header of an encoded picture. Width and height are 0 if it is damaged, or of an `other` format.
struct PictureHeader {
    std::int32_t format = 0, width = 0, height = 0, components = 0;
    std::int32_t orientation = 1;  // of EXIF, 1 to 8
};

// Reads the header of a picture of n bytes. Never throws. O(bytes of the header).
PictureHeader read_picture_header(const std::uint8_t* data, std::size_t n);

// out[i * count + j]: a uniform number in [0, 1), the upper 53 bits of
// hash_key(seed, sweeps[i], 2, ordinals[i], stage, step, j).
void keyed_uniforms(std::uint64_t seed, const std::int64_t* sweeps, const std::int64_t* ordinals, std::size_t n,
                    std::uint64_t stage, std::uint64_t step, std::size_t count, double* out);

// Interleaved pixels of 1 or 3 channels, in memory that is reused. Rows are contiguous, unless `reshape_loose` leaves
// gaps between them.
class Pixels {
  public:
    int width = 0, height = 0, channels = 0;

    // Sets the size. The pixels are then undefined. Throws std::bad_alloc.
    void reshape(int w, int h, int c);
    // The same with `before` bytes before the first pixel of each row, and at least `pitch` bytes from row to row.
    // `before` and the bytes of a row must fit into `pitch`.
    void reshape_loose(int w, int h, int c, std::size_t before, std::size_t pitch);
    std::uint8_t* row(int y) { return memory_.get() + before_ + std::size_t(y) * pitch_; }
    const std::uint8_t* row(int y) const { return memory_.get() + before_ + std::size_t(y) * pitch_; }
    // Bytes of the pixels of a row.
    std::size_t stride() const { return std::size_t(width) * std::size_t(channels); }
    std::size_t size() const { return stride() * std::size_t(height); }
    std::size_t capacity() const { return capacity_; }  // bytes allocated

  private:
    void reserve(std::size_t size);

    std::unique_ptr<std::uint8_t[]> memory_;
    std::size_t capacity_ = 0, before_ = 0, pitch_ = 0;
};

// Takes the rows of a picture as they are decoded or resized, from top to bottom, while they are in a near cache.
class PictureRows {
  public:
    // 32 bytes after the row may be read.
    virtual void take(int y, const std::uint8_t* row) noexcept = 0;

  protected:
    ~PictureRows() = default;
};

// A region of a picture, in its pixels.
struct Region {
    int x = 0, y = 0, width = 0, height = 0;
};

enum class PictureColor : int { rgb = 0, bgr = 1, grey = 2 };

// The version of libjpeg-turbo, such as "2.1.5", or "" without it, when decode_jpeg() always fails.
const char* jpeg_version();

// Decodes a region of a JPEG into `out`: of the picture as stored, at 1/`shrink` (1, 2, 4 or 8) of its size. An empty
// region is the whole picture. The same bits as decoding the whole picture and cropping, except for 4:1:0 with
// shrink > 1, where libjpeg-turbo skips lines differently. Returns "", or the fault in words. CMYK becomes RGB without
// profiles, from Adobe's inverted values. At most 100 scans of a progressive picture are read. `loose`: rows of `out`
// may have gaps between them, which saves a copy. With `rows`, they take the pixels, not `out`. Throws std::bad_alloc.
std::string decode_jpeg(const std::uint8_t* data, std::size_t n, PictureColor color, Region region, int shrink,
                        Pixels& out, bool loose = false, PictureRows* rows = nullptr);

// ---- operations --------------------------------------------------------------------------------------------

enum class PictureFilter : int {
    nearest = 0,         // pixel (int)((x + 1/2) * scale), added up step by step as in Pillow
    triangle = 1,        // antialiased: as wide as the scale when the picture becomes smaller
    linear = 2,          // two pixels, whatever the scale; this one and those below as OpenCV defines them
    nearest_corner = 3,  // pixel (int)(x * scale)
    cubic = 4,           // four pixels, a = -3/4
    lanczos = 5,         // eight pixels
};

enum class PictureBorder : int {
    constant = 0,
    edge = 1,       // the outermost pixels
    reflect = 2,    // mirrored about the middle of the outermost pixels, which are not repeated: 2 1 | 0 1 2 | 1 0
    symmetric = 3,  // mirrored about the edges: 1 0 | 0 1 2 | 2 1; both repeat beyond the opposite edge, as in NumPy
};

// Turns and mirrors by an EXIF orientation. Throws std::bad_alloc.
void turn_upright(const Pixels& in, int orientation, Pixels& out);

// The region of the stored picture, of this width and height, that becomes the region `upright` when turned.
Region stored_region(Region upright, int orientation, int width, int height);

// Resamples the box (x0, y0, x1, y1) of a picture, in pixels with fractions, to width x height: separable, rows first,
// 14 bits for weights, 22 if there are more than 64 of them, and 6 fractional bits between the passes. Borders are
// repeated. out: height * width * in.channels bytes, or null if `rows` take the result. Throws std::bad_alloc.
void resize_pixels(const Pixels& in, double x0, double y0, double x1, double y1, int width, int height,
                   PictureFilter filter, std::uint8_t* out, PictureRows* rows = nullptr);

// ---- batches -----------------------------------------------------------------------------------------------

enum class PictureOp : std::uint8_t { crop = 1, resize = 2, flip = 3, pad = 4, jitter = 5 };

// The number of parameters of an operation, 0 for one that does not exist.
int picture_op_arity(std::uint8_t kind);

struct RawPicture {  // already decoded, uint8 (height, width, channels)
    const std::uint8_t* data = nullptr;
    int width = 0, height = 0;
};

// A batch of pictures to decode. All pointers must stay valid until it is done or abandoned.
struct PictureBatchOptions {
    const std::uint8_t* data = nullptr;    // encoded pictures
    const std::int64_t* bounds = nullptr;  // n + 1, ascending, within the data
    std::size_t n = 0;
    std::vector<RawPicture> raw;  // n, or none; one without data is an encoded picture
    std::vector<std::uint8_t> kinds;
    const double* params = nullptr;  // n rows of `numbers` parameters
    std::size_t numbers = 0;
    PictureColor color = PictureColor::rgb;
    bool upright = true, shrink = false, floats = false, planes = false;
    std::vector<float> mean, scale;  // one for each channel, if `floats`
    std::int64_t max_pixels = 0;
    int width = 0, height = 0;  // of every result
    void* out = nullptr;
    int threads = 1;
};

// A batch that threads of the process decode. Work begins when it is created, and batches are served in the order of
// their creation. In a forked child, `finish` does all of its parent's work again. Throws std::bad_alloc.
class PictureBatch {
  public:
    explicit PictureBatch(PictureBatchOptions options);
    ~PictureBatch();  // abandons it: waits for pictures in progress
    PictureBatch(const PictureBatch&) = delete;
    PictureBatch& operator=(const PictureBatch&) = delete;

    // Decodes pictures in this thread too, and waits for the others. Returns the pictures that could not be decoded, in
    // ascending order, each with the fault in words. Their results are zeros.
    std::vector<std::pair<std::size_t, std::string>> finish();
    bool done() const;
    double seconds() const;  // that all threads have spent so far

    struct State;

  private:
    std::shared_ptr<State> state_;
};

}  // namespace feedline
