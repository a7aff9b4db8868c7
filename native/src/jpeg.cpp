// decode_jpeg() by libjpeg-turbo. Its errors are jumps, so no object that needs a destructor may live across its calls.
#include "feedline/pictures.h"

#ifdef FEEDLINE_JPEG

#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>

#include "picture_ops.h"

#define FEEDLINE_TEXT(name) #name
#define FEEDLINE_VALUE(name) FEEDLINE_TEXT(name)

namespace feedline {

namespace {

constexpr int kMaxScans = 100;  // of a progressive picture; encoders write about ten
// Pixels on either side of a region that are decoded with it. Where colours have fewer samples than brightness, the
// decoder mixes neighbours, for which one pixel would do. But it mixes none in a line of fewer than three such samples.
constexpr int kMargin = 8;

struct Errors {
    jpeg_error_mgr base;  // the first member, as libjpeg has a pointer to it
    jmp_buf leave;
    char text[JMSG_LENGTH_MAX];
};

[[noreturn]] void fail(j_common_ptr info) {
    auto* errors = reinterpret_cast<Errors*>(info->err);
    if (errors->text[0] == '\0') errors->base.format_message(info, errors->text);
    longjmp(errors->leave, 1);
}

// Warnings about missing or invented pixels are errors. Warnings about markers are ignored.
void warn(j_common_ptr info, int level) {
    if (level >= 0) return;
    switch (info->err->msg_code) {
        case JWRN_ADOBE_XFORM:
        case JWRN_EXTRANEOUS_DATA:
        case JWRN_JFIF_MAJOR:
        case JWRN_TOO_MUCH_DATA:
            return;
        default:
            fail(info);
    }
}

void ignore_message(j_common_ptr) {}

void count_scans(j_common_ptr info) {
    if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMaxScans) return;
    auto* errors = reinterpret_cast<Errors*>(info->err);
    std::snprintf(errors->text, sizeof errors->text, "more than %d scans", kMaxScans);
    fail(info);
}

// Inverted CMYK, as Adobe writes it, to RGB; r = k - (255 - c) * k / 255, rounded.
void from_cmyk(const std::uint8_t* in, std::uint8_t* out, int width, PictureColor color) {
    const auto channel = [](unsigned c, unsigned k) {
        const unsigned product = (255 - c) * k + 128;
        return std::uint8_t(k - ((product + (product >> 8)) >> 8));
    };
    for (int x = 0; x < width; ++x, in += 4) {
        const std::uint8_t r = channel(in[0], in[3]), g = channel(in[1], in[3]), b = channel(in[2], in[3]);
        if (color == PictureColor::grey) {
            *out++ = std::uint8_t((19595u * r + 38470u * g + 7471u * b + 0x8000u) >> 16);  // ITU-R 601
        } else {
            const bool rgb = color == PictureColor::rgb;
            out[0] = rgb ? r : b, out[1] = g, out[2] = rgb ? b : r;
            out += 3;
        }
    }
}

bool ends_with_a_marker(const std::uint8_t* data, std::size_t n) {
    for (std::size_t at = n; at >= 2; --at)
        if (data[at - 2] == 0xff && data[at - 1] == 0xd9) return true;
    return false;
}

struct Decoding {  // state that must survive a jump
    jpeg_decompress_struct info;
    Errors errors;
    jpeg_progress_mgr progress;
};

}  // namespace

const char* jpeg_version() { return FEEDLINE_VALUE(LIBJPEG_TURBO_VERSION); }

std::string decode_jpeg(const std::uint8_t* data, std::size_t n, PictureColor color, Region region, int shrink,
                        Pixels& out, bool loose, PictureRows* rows) {
    const PictureHeader header = read_picture_header(data, n);
    Decoding decoding;
    auto& info = decoding.info;
    auto& errors = decoding.errors;
    static thread_local std::vector<std::uint8_t> scratch;  // static, so that a jump does not leak it
    std::vector<std::uint8_t>& line = scratch;              // looked up once
    std::memset(&decoding, 0, sizeof decoding);
    info.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = fail;
    errors.base.emit_message = warn;
    errors.base.output_message = ignore_message;
    if (setjmp(errors.leave) != 0) {
        jpeg_destroy_decompress(&info);
        return errors.text;
    }
    jpeg_create_decompress(&info);
    decoding.progress.progress_monitor = count_scans;
    info.progress = &decoding.progress;
    jpeg_mem_src(&info, data, static_cast<unsigned long>(n));
    jpeg_read_header(&info, TRUE);
    // The caller has checked the size that our parser read, so no picture of another size may be decoded.
    if (info.image_width != JDIMENSION(header.width) || info.image_height != JDIMENSION(header.height)) {
        jpeg_destroy_decompress(&info);
        return "its header gives two sizes";
    }
    const bool cmyk = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
    if (cmyk)
        info.out_color_space = JCS_CMYK;
    else if (color == PictureColor::grey)
        info.out_color_space = JCS_GRAYSCALE;
    else
        info.out_color_space = color == PictureColor::rgb ? JCS_EXT_RGB : JCS_EXT_BGR;
    info.dct_method = JDCT_ISLOW;
    info.do_fancy_upsampling = TRUE;
    info.do_block_smoothing = FALSE;  // it looks across the borders of regions
    info.scale_num = 8u / static_cast<unsigned>(shrink);
    info.scale_denom = 8;
    jpeg_start_decompress(&info);
    const int width = static_cast<int>(info.output_width), height = static_cast<int>(info.output_height);
    if (region.width == 0) region = {0, 0, width, height};
    if (region.x < 0 || region.y < 0 || region.width < 1 || region.height < 1 || region.x > width - region.width ||
        region.y > height - region.height) {
        jpeg_destroy_decompress(&info);
        return "a region outside of the picture";
    }
    JDIMENSION left = 0, across = info.output_width;
    const bool skips = info.arith_code == FALSE;  // the arithmetic decoder cannot skip
    if (region.width < width && skips) {
        left = static_cast<JDIMENSION>(std::max(region.x - kMargin, 0));
        across = static_cast<JDIMENSION>(std::min(region.x + region.width + kMargin, width)) - left;
        jpeg_crop_scanline(&info, &left, &across);
    }
    if (region.y > 0 && skips) jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(region.y));
    const int channels = color == PictureColor::grey ? 1 : 3;
    const std::size_t wide = std::size_t(info.output_width) * std::size_t(cmyk ? 4 : channels);
    const std::size_t offset = std::size_t(region.x - static_cast<int>(left)) * std::size_t(cmyk ? 4 : channels);
    // Rows are as wide as the decoder makes them. They are decoded into `out` itself if it may have gaps between rows.
    const bool dense = wide == std::size_t(region.width) * std::size_t(channels);
    const bool straight = rows == nullptr && !cmyk && (loose || dense);
    try {
        if (straight)
            out.reshape_loose(region.width, region.height, channels, offset, wide);
        else
            out.reshape(region.width, rows == nullptr ? region.height : 1, channels);
        if (line.size() < wide + kSlack + kUnalignedBytes) line.resize(wide + kSlack + kUnalignedBytes);
    } catch (const std::bad_alloc&) {
        jpeg_destroy_decompress(&info);
        throw;
    }
    std::uint8_t* const between = unaligned(line.data());
    for (int y = skips ? region.y : 0; y < region.y; ++y) {
        JSAMPROW row = between;
        jpeg_read_scanlines(&info, &row, 1);
    }
    for (int y = 0; y < region.height; ++y) {
        JSAMPROW row = straight ? out.row(y) - offset : between;
        jpeg_read_scanlines(&info, &row, 1);
        std::uint8_t* const to = out.row(rows == nullptr ? y : 0);
        if (cmyk) from_cmyk(row + offset, to, region.width, color);
        if (rows != nullptr)
            rows->take(y, cmyk ? to : row + offset);
        else if (!cmyk && !straight)
            std::memcpy(to, row + offset, out.stride());
    }
    // If rows that were not read are missing, this region fails too, as other regions of the picture do.
    const bool complete = ends_with_a_marker(info.src->next_input_byte, info.src->bytes_in_buffer) ||
                          info.unread_marker == JPEG_EOI || jpeg_input_complete(&info) != FALSE;
    jpeg_destroy_decompress(&info);
    return complete ? "" : "it ends early, without an end marker";
}

}  // namespace feedline

#else

namespace feedline {

const char* jpeg_version() { return ""; }

std::string decode_jpeg(const std::uint8_t*, std::size_t, PictureColor, Region, int, Pixels&, bool, PictureRows*) {
    return "feedline was built without libjpeg-turbo";
}

}  // namespace feedline

#endif
