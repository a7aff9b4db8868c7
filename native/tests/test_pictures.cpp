// Pictures without Python: regions of JPEGs of all kinds are the same bits as the whole, batches do not depend on threads,
// and damaged bytes are refused or decoded without touching anything outside. Meant for ASan + UBSan (`make sanitize`).
//
//   test_pictures [seconds = 1] [seed = 1]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#ifdef FEEDLINE_JPEG
#include <jpeglib.h>
#endif

#include "check.h"
#include "feedline/pictures.h"

using namespace feedline;

#ifdef FEEDLINE_JPEG

namespace {

struct Kind {
    const char* name;
    int components, across, down;  // of the first component, in samples of the others
    bool progressive;
    int restart;
    bool arithmetic;
};

constexpr Kind kKinds[] = {
    {"4:2:0", 3, 2, 2, false, 0, false},  {"4:2:2", 3, 2, 1, false, 0, false},  {"4:4:4", 3, 1, 1, false, 0, false},
    {"4:1:1", 3, 4, 1, false, 0, false},  {"4:4:0", 3, 1, 2, false, 0, false},  {"grey", 1, 1, 1, false, 0, false},
    {"CMYK", 4, 1, 1, false, 0, false},   {"restarts", 3, 2, 2, false, 3, false}, {"progressive", 3, 2, 2, true, 0, false},
    {"progressive 4:2:2", 3, 2, 1, true, 0, false}, {"progressive grey", 1, 1, 1, true, 0, false},
    {"arithmetic", 3, 2, 2, false, 0, true},
};

using Encoded = std::vector<std::uint8_t>;

Encoded encode(const Kind& kind, int width, int height, int quality, std::mt19937& random) {
    jpeg_compress_struct info;
    jpeg_error_mgr errors;
    info.err = jpeg_std_error(&errors);
    jpeg_create_compress(&info);
    unsigned char* out = nullptr;
    unsigned long size = 0;
    jpeg_mem_dest(&info, &out, &size);
    info.image_width = static_cast<JDIMENSION>(width), info.image_height = static_cast<JDIMENSION>(height);
    info.input_components = kind.components;
    info.in_color_space = kind.components == 1 ? JCS_GRAYSCALE : kind.components == 3 ? JCS_RGB : JCS_CMYK;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, quality, TRUE);
    info.comp_info[0].h_samp_factor = kind.across, info.comp_info[0].v_samp_factor = kind.down;
    info.restart_interval = static_cast<unsigned>(kind.restart);
    info.arith_code = kind.arithmetic ? TRUE : FALSE;
    if (kind.progressive) jpeg_simple_progression(&info);
    jpeg_start_compress(&info, TRUE);
    std::vector<std::uint8_t> row(std::size_t(width * kind.components));
    const unsigned slope = random() % 7;
    for (int y = 0; y < height; ++y) {
        for (std::size_t x = 0; x < row.size(); ++x)
            row[x] = static_cast<std::uint8_t>((x * slope + unsigned(y) * 5) % 256 / 2 + random() % 128);
        JSAMPROW rows[] = {row.data()};
        jpeg_write_scanlines(&info, rows, 1);
    }
    jpeg_finish_compress(&info);
    jpeg_destroy_compress(&info);
    const Encoded found(out, out + size);
    std::free(out);
    return found;
}

int below(std::mt19937& random, int n) { return static_cast<int>(random() % unsigned(n)); }

Region some_region(std::mt19937& random, int width, int height) {
    const int w = 1 + below(random, width), h = 1 + below(random, height);
    return {below(random, width - w + 1), below(random, height - h + 1), w, h};
}

void compare(const Pixels& whole, Region r, const Pixels& part, const char* name) {
    CHECK(part.width == r.width && part.height == r.height && part.channels == whole.channels);
    const std::size_t offset = std::size_t(r.x * whole.channels);
    for (int y = 0; y < r.height; ++y)
        if (std::memcmp(part.row(y), whole.row(r.y + y) + offset, part.stride()) != 0) {
            std::fprintf(stderr, "%s: region %d x %d at (%d, %d) differs in row %d\n", name, r.width, r.height, r.x,
                         r.y, y);
            std::exit(1);
        }
}

void regions_are_of_the_whole(std::mt19937& random, int rounds) {
    Pixels whole, part;
    for (int round = 0; round < rounds; ++round)
        for (const Kind& kind : kKinds) {
            const int width = 1 + below(random, 90), height = 1 + below(random, 90);
            const Encoded jpeg = encode(kind, width, height, 30 + below(random, 70), random);
            const PictureHeader header = read_picture_header(jpeg.data(), jpeg.size());
            CHECK(header.width == width && header.height == height && header.components == kind.components);
            for (const auto color : {PictureColor::rgb, PictureColor::bgr, PictureColor::grey}) {
                const std::string failed = decode_jpeg(jpeg.data(), jpeg.size(), color, {}, 1, whole);
                if (!failed.empty()) std::fprintf(stderr, "%s: %s\n", kind.name, failed.c_str());
                CHECK(failed.empty());
                CHECK(whole.width == width && whole.height == height);
                for (int k = 0; k < 8; ++k) {
                    const Region r = some_region(random, width, height);
                    const std::string wrong = decode_jpeg(jpeg.data(), jpeg.size(), color, r, 1, part);
                    CHECK(wrong.empty());
                    compare(whole, r, part, kind.name);
                }
            }
            for (const int shrink : {2, 4, 8}) {
                CHECK(decode_jpeg(jpeg.data(), jpeg.size(), PictureColor::rgb, {}, shrink, whole).empty());
                CHECK(whole.width == (width + shrink - 1) / shrink && whole.height == (height + shrink - 1) / shrink);
                const Region r = some_region(random, whole.width, whole.height);
                CHECK(decode_jpeg(jpeg.data(), jpeg.size(), PictureColor::rgb, r, shrink, part).empty());
                compare(whole, r, part, kind.name);
            }
        }
}

// What a cut picture lacks is noticed, wherever its region lies.
void cut_pictures_are_refused(std::mt19937& random) {
    Pixels part;
    for (const Kind& kind : kKinds) {
        const Encoded jpeg = encode(kind, 64, 48, 80, random);
        for (int k = 0; k < 40; ++k) {
            // A copy of the exact size, so that reading past it is noticed.
            const std::size_t left = random() % (jpeg.size() - 1);
            const std::unique_ptr<std::uint8_t[]> cut(new std::uint8_t[left]);
            std::memcpy(cut.get(), jpeg.data(), left);
            const std::string wrong =
                decode_jpeg(cut.get(), left, PictureColor::rgb, some_region(random, 64, 48), 1, part);
            CHECK(!wrong.empty());
        }
    }
}

struct Batch {
    std::vector<std::uint8_t> data;
    std::vector<std::int64_t> bounds{0};
    std::vector<double> params;

    void add(const Encoded& one) {
        data.insert(data.end(), one.begin(), one.end());
        bounds.push_back(static_cast<std::int64_t>(data.size()));
    }

    PictureBatchOptions options(int threads, std::vector<float>& out) const {
        PictureBatchOptions found;
        found.data = data.data(), found.bounds = bounds.data(), found.n = bounds.size() - 1;
        found.kinds = {1, 2, 3, 5}, found.params = params.data(), found.numbers = 14;
        found.floats = found.planes = true;
        found.mean = {1, 2, 3}, found.scale = {0.5f, 0.25f, 2};
        found.max_pixels = 1 << 20, found.width = 24, found.height = 20, found.threads = threads;
        out.assign(found.n * 3 * 24 * 20, -1.0f);
        found.out = out.data();
        return found;
    }
};

void threads_change_nothing(std::mt19937& random) {
    Batch batch;
    for (int i = 0; i < 40; ++i) {
        const int width = 30 + below(random, 60), height = 30 + below(random, 60);
        Encoded jpeg = encode(kKinds[std::size_t(below(random, 12))], width, height, 85, random);
        if (i % 9 == 8) jpeg.resize(jpeg.size() / 2);
        batch.add(jpeg);
        const Region r = some_region(random, width, height);
        const double row[] = {double(r.x), double(r.y), double(r.width), double(r.height), 24, 20, 1, double(i % 2),
                              double(i % 3 == 0), 1.2, 0.8, 1.3, 0.1, double(i % 24)};
        batch.params.insert(batch.params.end(), row, row + 14);
    }
    std::vector<float> first, other;
    const auto wrong = PictureBatch(batch.options(1, first)).finish();
    CHECK(wrong.size() == 4);
    for (const int threads : {2, 7}) {
        PictureBatch again(batch.options(threads, other));
        CHECK(again.finish() == wrong);
        CHECK(again.finish() == wrong);
        CHECK(again.done() && other == first);
        std::vector<float> dropped;
        { const PictureBatch not_finished(batch.options(threads, dropped)); }
    }
}

void damage(Encoded& jpeg, std::mt19937& random) {
    for (int k = 1 + below(random, 4); k > 0; --k) {
        if (jpeg.empty()) return;
        const std::size_t at = random() % jpeg.size();
        switch (random() % 4) {
            case 0: jpeg[at] = static_cast<std::uint8_t>(random()); break;
            case 1: jpeg[at] ^= static_cast<std::uint8_t>(1u << random() % 8); break;
            case 2: jpeg.resize(at); break;
            default: {
                const std::size_t from = random() % jpeg.size(), n = random() % 40;
                for (std::size_t i = 0; i < n && at + i < jpeg.size() && from + i < jpeg.size(); ++i)
                    jpeg[at + i] = jpeg[from + i];
            }
        }
    }
}

std::size_t fuzz(std::mt19937& random, double seconds) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    std::size_t tried = 0;
    std::vector<Encoded> sound;
    for (const Kind& kind : kKinds) sound.push_back(encode(kind, 33, 41, 60, random));
    Pixels part;
    while (std::chrono::steady_clock::now() < until) {
        Encoded jpeg = sound[random() % sound.size()];
        damage(jpeg, random);
        const std::unique_ptr<std::uint8_t[]> exact(new std::uint8_t[jpeg.size()]);
        if (!jpeg.empty()) std::memcpy(exact.get(), jpeg.data(), jpeg.size());
        const PictureHeader header = read_picture_header(exact.get(), jpeg.size());
        CHECK(header.width >= 0 && header.height >= 0 && header.orientation >= 1 && header.orientation <= 8);
        ++tried;
        if (header.width == 0 || std::int64_t(header.width) * header.height > 1 << 16) continue;
        const auto color = static_cast<PictureColor>(random() % 3);
        const int shrink = 1 << random() % 4;
        const Region r = random() % 2 ? Region{} : some_region(random, header.width, header.height);
        decode_jpeg(exact.get(), jpeg.size(), color, r, shrink, part);
    }
    return tried;
}

}  // namespace

int main(int argc, char** argv) {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
    std::mt19937 random(argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1);
    regions_are_of_the_whole(random, 6);
    cut_pictures_are_refused(random);
    threads_change_nothing(random);
    std::printf("pictures: %zu damaged ones\n", fuzz(random, seconds));
}

#else

int main() { std::printf("pictures: built without libjpeg-turbo\n"); }

#endif
