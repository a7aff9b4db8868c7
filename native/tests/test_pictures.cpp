// Pictures: regions have the pixels of the whole picture in every kind of JPEG, batches do not depend on threads, and
// damaged pictures are refused or read without reads or writes outside. Meant for ASan + UBSan (`make sanitize`).
//
//   test_pictures [seconds = 1] [seed = 1]
#include "feedline/pictures.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.h"

#ifdef FEEDLINE_JPEG
#include <jpeglib.h>
#endif

using namespace feedline;

namespace {

using Bytes = std::vector<std::uint8_t>;

void test_headers() {
    const auto header = [](const Bytes& bytes) { return read_picture_header(bytes.data(), bytes.size()); };
    CHECK(header({}).format == 0);
    CHECK(header({0xff, 0xd8}).format == 0);
    CHECK(header({'G', 'I', 'F', '8', '9', 'a'}).format == 3);
    CHECK(header({0xff, 0xd8, 0xff, 0xc0}).width == 0);
    const Bytes frame{0xff, 0xc0, 0, 11, 8, 0, 7, 0, 9, 1, 1, 0x11, 0};
    const auto after_start = [&](Bytes middle) {
        Bytes bytes{0xff, 0xd8};
        bytes.insert(bytes.end(), middle.begin(), middle.end());
        bytes.insert(bytes.end(), frame.begin(), frame.end());
        return header(bytes);
    };
    CHECK(after_start({}).width == 9 && after_start({}).height == 7 && after_start({}).components == 1);
    CHECK(after_start({0xff, 0xff}).width == 9);    // bytes that fill
    CHECK(after_start({0xff, 0x00}).width == 0);    // no marker: nothing after it is believed
    CHECK(after_start({0xff, 0xe1, 0, 1}).width == 0);  // a length that cannot be
    // EXIF longer than its segment, with a directory far beyond it.
    CHECK(after_start({0xff, 0xe1, 0, 2, 'E', 'x', 'i', 'f', 0, 0, 'I', 'I', '*', 0, 0xf0, 0xff, 0xff, 0xff}).orientation == 1);
}

#ifdef FEEDLINE_JPEG

struct Kind {
    const char* name;
    J_COLOR_SPACE color;
    int h, v;  // samples of the first component for one of the others
    bool progressive;
    unsigned restart;  // blocks
    bool arithmetic = false;
};

constexpr Kind kKinds[] = {
    {"4:4:4", JCS_YCbCr, 1, 1, false, 0},       {"4:2:2", JCS_YCbCr, 2, 1, false, 0},
    {"4:2:0", JCS_YCbCr, 2, 2, false, 0},       {"4:4:0", JCS_YCbCr, 1, 2, false, 0},
    {"4:1:1", JCS_YCbCr, 4, 1, false, 0},       {"4:1:0", JCS_YCbCr, 4, 2, false, 0},
    {"restarts", JCS_YCbCr, 2, 2, false, 3},    {"progressive", JCS_YCbCr, 2, 2, true, 0},
    {"progressive 4:4:4", JCS_YCbCr, 1, 1, true, 0}, {"progressive restarts", JCS_YCbCr, 2, 1, true, 2},
    {"grey", JCS_GRAYSCALE, 1, 1, false, 0},    {"RGB", JCS_RGB, 1, 1, false, 0},
    {"CMYK", JCS_CMYK, 1, 1, false, 0},         {"YCCK", JCS_YCCK, 2, 2, false, 0},
    {"arithmetic", JCS_YCbCr, 2, 2, false, 0, true},
};

Bytes encoded(const Kind& kind, int width, int height, std::mt19937_64& random) {
    jpeg_compress_struct info;
    jpeg_error_mgr errors;
    info.err = jpeg_std_error(&errors);
    jpeg_create_compress(&info);
    unsigned char* memory = nullptr;
    unsigned long size = 0;
    jpeg_mem_dest(&info, &memory, &size);
    const bool cmyk = kind.color == JCS_CMYK || kind.color == JCS_YCCK;
    info.image_width = static_cast<JDIMENSION>(width), info.image_height = static_cast<JDIMENSION>(height);
    info.input_components = cmyk ? 4 : kind.color == JCS_GRAYSCALE ? 1 : 3;
    info.in_color_space = cmyk ? JCS_CMYK : kind.color == JCS_GRAYSCALE ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&info);
    jpeg_set_colorspace(&info, kind.color);
    jpeg_set_quality(&info, 90, TRUE);
    if (kind.progressive) jpeg_simple_progression(&info);
    info.restart_interval = kind.restart;
    info.arith_code = kind.arithmetic ? TRUE : FALSE;
    info.comp_info[0].h_samp_factor = kind.h, info.comp_info[0].v_samp_factor = kind.v;
    if (cmyk) info.comp_info[3].h_samp_factor = kind.h, info.comp_info[3].v_samp_factor = kind.v;
    jpeg_start_compress(&info, TRUE);
    Bytes row(std::size_t(width) * std::size_t(info.input_components));
    while (info.next_scanline < info.image_height) {
        for (auto& value : row) value = static_cast<std::uint8_t>(random());  // all neighbours differ
        JSAMPROW at = row.data();
        jpeg_write_scanlines(&info, &at, 1);
    }
    jpeg_finish_compress(&info);
    jpeg_destroy_compress(&info);
    Bytes out(memory, memory + size);
    std::free(memory);
    return out;
}

void check_region(const Bytes& bytes, const Pixels& whole, PictureColor color, Region r, int shrink) {
    Pixels part;
    CHECK(decode_jpeg(bytes.data(), bytes.size(), color, r, shrink, part).empty());
    CHECK(part.width == r.width && part.height == r.height && part.channels == whole.channels);
    const std::size_t offset = std::size_t(r.x) * std::size_t(whole.channels);
    for (int y = 0; y < r.height; ++y)
        CHECK(std::memcmp(part.row(y), whole.row(r.y + y) + offset, part.stride()) == 0);
}

void test_regions(std::mt19937_64& random) {
    constexpr int kSizes[][2] = {{1, 1}, {2, 3}, {7, 5}, {17, 18}, {34, 33}, {64, 48}, {71, 50}};
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    for (const Kind& kind : kKinds)
        for (const auto& size : kSizes) {
            const Bytes bytes = encoded(kind, size[0], size[1], random);
            const PictureHeader header = read_picture_header(bytes.data(), bytes.size());
            CHECK(header.format == 1 && header.width == size[0] && header.height == size[1]);
            for (const PictureColor color : {PictureColor::rgb, PictureColor::bgr, PictureColor::grey})
                for (const int shrink : {1, 2, 4, 8}) {
                    if (shrink > 1 && kind.h == 4 && kind.v == 2) continue;  // see `decode_jpeg`
                    Pixels whole;
                    CHECK(decode_jpeg(bytes.data(), bytes.size(), color, {}, shrink, whole).empty());
                    const int width = whole.width, height = whole.height;
                    // One column at either side, where the decoder mixes colours in another way.
                    check_region(bytes, whole, color, {0, 0, 1, height}, shrink);
                    check_region(bytes, whole, color, {width - 1, height - 1, 1, 1}, shrink);
                    for (int k = 0; k < 6; ++k) {
                        const int w = 1 + below(k % 2 == 0 ? width : std::min(width, 4)), h = 1 + below(height);
                        check_region(bytes, whole, color, {below(width - w + 1), below(height - h + 1), w, h}, shrink);
                    }
                }
        }
}

// A cut anywhere, even of the end marker alone, is detected in the whole picture and in a region at the top.
void test_cut(std::mt19937_64& random) {
    for (const Kind& kind : kKinds) {
        const Bytes bytes = encoded(kind, 50, 40, random);
        Pixels pixels;
        for (std::size_t n = 0; n < bytes.size(); n += 1 + n / 16)
            for (const Region region : {Region{}, Region{0, 0, 20, 5}})
                CHECK(!decode_jpeg(bytes.data(), n, PictureColor::rgb, region, 1, pixels).empty());
        for (const Region region : {Region{}, Region{0, 0, 20, 5}})
            CHECK(!decode_jpeg(bytes.data(), bytes.size() - 1, PictureColor::rgb, region, 1, pixels).empty());
    }
}

// A picture of more pixels than permitted is refused before memory is allocated, and its result is zeros.
void test_oversized(std::mt19937_64& random) {
    const Bytes bytes = encoded(kKinds[0], 20, 16, random);
    Bytes large = bytes;
    for (std::size_t at = 2; at + 9 < large.size(); ++at)
        if (large[at] == 0xff && large[at + 1] == 0xc0) large[at + 5] = 0xff, large[at + 7] = 0xff;
    CHECK(read_picture_header(large.data(), large.size()).width > 60000);
    PictureBatchOptions options;
    const std::int64_t bounds[] = {0, static_cast<std::int64_t>(large.size())};
    Bytes out(16 * 20 * 3, 1);
    options.data = large.data(), options.bounds = bounds, options.n = 1;
    options.max_pixels = 1 << 20, options.width = 20, options.height = 16, options.out = out.data();
    PictureBatch batch(options);
    const auto wrong = batch.finish();
    CHECK(wrong.size() == 1 && wrong[0].second.find("at most 1048576 pixels") != std::string::npos);
    CHECK(out == Bytes(out.size(), 0));
}

Bytes run_batch(const Bytes& data, const std::vector<std::int64_t>& bounds, int threads, bool shrink, int orientation,
                std::mt19937_64 random, std::size_t* wrong) {
    PictureBatchOptions options;
    const std::size_t n = bounds.size() - 1;
    options.data = data.data(), options.bounds = bounds.data(), options.n = n;
    options.kinds = {1, 2, 3, 4, 5};
    options.numbers = 4 + 3 + 2 + 6 + 5;
    options.shrink = shrink, options.upright = orientation != 0, options.threads = threads;
    options.max_pixels = 1 << 16, options.width = 24, options.height = 21;
    std::vector<double> params;
    for (std::size_t i = 0; i < n; ++i) {
        const double w = static_cast<double>(1 + random() % 50), h = static_cast<double>(1 + random() % 40);
        const double filter = static_cast<double>(random() % 6);
        for (const double number : {double(random() % std::size_t(51 - w)), double(random() % std::size_t(41 - h)), w, h,
                                    20.0, 18.0, filter, double(random() % 2), double(random() % 2), 3.0, 1.0, 1.0, 2.0,
                                    double(random() % 2), 77.0, 1.3, 0.6, 1.4, 0.1, double(random() % 24)})
            params.push_back(number);
    }
    options.params = params.data();
    Bytes out(n * 24 * 21 * 3, 1);
    options.out = out.data();
    PictureBatch batch(options);
    const auto found = batch.finish();
    if (wrong != nullptr) *wrong = found.size();
    return out;
}

void test_threads(std::mt19937_64& random) {
    Bytes data;
    std::vector<std::int64_t> bounds{0};
    for (int k = 0; k < 40; ++k) {
        const Bytes one = encoded(kKinds[k % 14], 50, 40, random);
        data.insert(data.end(), one.begin(), one.end());
        bounds.push_back(static_cast<std::int64_t>(data.size()));
    }
    for (const bool shrink : {false, true}) {
        std::size_t wrong = 1;
        const Bytes alone = run_batch(data, bounds, 1, shrink, 1, random, &wrong);
        CHECK(wrong == 0);
        for (const int threads : {2, 7}) CHECK(run_batch(data, bounds, threads, shrink, 1, random, nullptr) == alone);
    }
}

void test_damaged(std::mt19937_64& random, std::chrono::steady_clock::time_point until) {
    std::vector<Bytes> sound;
    for (const Kind& kind : kKinds) sound.push_back(encoded(kind, 50, 40, random));
    do {
        Bytes data;
        std::vector<std::int64_t> bounds{0};
        for (int k = 0; k < 8; ++k) {
            Bytes one = sound[random() % sound.size()];
            const std::size_t changes = 1 + random() % 6;
            for (std::size_t c = 0; c < changes; ++c) {
                const std::size_t place = random() % 2 == 0 ? random() % std::min<std::size_t>(one.size(), 640)
                                                            : random() % one.size();
                one[place] = static_cast<std::uint8_t>(random() % 3 == 0 ? 0xff : random());
            }
            if (random() % 8 == 0) one.resize(random() % one.size());
            // Allocated sizes must stay small here, as this call has no batch that would refuse larger ones.
            const PictureHeader header = read_picture_header(one.data(), one.size());
            if (std::int64_t(header.width) * header.height <= 1 << 16) {
                Pixels pixels;
                const auto color = static_cast<PictureColor>(random() % 3);
                decode_jpeg(one.data(), one.size(), color, {}, 1 << (random() % 4), pixels);
                const int w = 1 + static_cast<int>(random() % 50), h = 1 + static_cast<int>(random() % 40);
                decode_jpeg(one.data(), one.size(), color, {w / 2, h / 2, w / 2 + 1, h / 2 + 1}, 1, pixels);
            }
            data.insert(data.end(), one.begin(), one.end());
            bounds.push_back(static_cast<std::int64_t>(data.size()));
        }
        run_batch(data, bounds, 1, random() % 2 == 0, static_cast<int>(random() % 2), random, nullptr);
    } while (std::chrono::steady_clock::now() < until);
}

#endif

}  // namespace

int main(int argc, char** argv) {
    test_headers();
#ifdef FEEDLINE_JPEG
    const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
    std::mt19937_64 random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
    test_regions(random);
    test_cut(random);
    test_oversized(random);
    test_threads(random);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(static_cast<int>(seconds * 1000));
    test_damaged(random, until);
    std::puts("pictures: ok");
#else
    (void)argc, (void)argv;
    std::puts("pictures: headers ok; built without libjpeg-turbo");
#endif
    return 0;
}
