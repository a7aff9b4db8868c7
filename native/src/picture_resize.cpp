// Resizing: separable, rows first, in integers. The pixels of a result and their weights are computed once for all rows
// and once for all columns.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "feedline/cpu.h"
#include "feedline/pictures.h"
#include "picture_ops.h"
#include "picture_variants.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace feedline {

namespace {

// Rounded to kWeightBits, this many weights are off by at most half a level in the sum. A picture made 32 times smaller
// has more, which would all round to 0, so these have kManyBits.
constexpr int kFewTaps = 64, kManyBits = 22;

constexpr std::size_t kMaxIdleBytes = std::size_t{4} << 20;

// The pixels that make each result, and their weights: `taps` weights for every result, with a sum of 1. The number of
// taps is even, so that they can be multiplied in pairs. Unneeded weights are 0.
struct Weights {
    int taps = 0;
    std::vector<int> first;
    std::vector<std::int16_t> few;   // in kWeightBits, up to kFewTaps
    std::vector<std::int32_t> many;  // in kManyBits, beyond

    const std::int16_t* of(int k) const { return few.data() + std::size_t(k) * std::size_t(taps); }
    const std::int32_t* many_of(int k) const { return many.data() + std::size_t(k) * std::size_t(taps); }
};

// One thread's memory.
struct Memory {
    Weights across, down;
    std::vector<double> exact;
    std::vector<const std::uint8_t*> rows;
    std::vector<std::int16_t> sums;
    std::vector<std::int32_t> totals, lanes;
    std::vector<std::uint8_t> end;

    std::size_t bytes() const {
        const auto of = [](const auto& v) { return v.capacity() * sizeof v[0]; };
        std::size_t total = of(exact) + of(rows) + of(sums) + of(totals) + of(lanes) + of(end);
        for (const Weights* w : {&across, &down}) total += of(w->first) + of(w->few) + of(w->many);
        return total;
    }
};

double weight(PictureFilter filter, double distance) {
    const double d = std::abs(distance);
    switch (filter) {
        case PictureFilter::cubic: {
            constexpr double a = -0.75;
            if (d < 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
            return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
        }
        case PictureFilter::lanczos: {
            constexpr double pi = 3.14159265358979323846;
            if (d < 1e-9) return 1;
            return d < 4 ? 4 * std::sin(pi * d) * std::sin(pi * d / 4) / (pi * pi * d * d) : 0;
        }
        default:
            return d < 1 ? 1 - d : 0;
    }
}

// Rounds weights to kWeightBits. The largest one takes the rounding error, so that equal pixels keep their value.
void round_few(const std::vector<double>& exact, double sum, std::int16_t* weights) {
    int remaining = 1 << kWeightBits, largest = 0;
    for (int t = 0; t < static_cast<int>(exact.size()); ++t) {
        weights[t] = static_cast<std::int16_t>(std::lrint(exact[std::size_t(t)] / sum * (1 << kWeightBits)));
        remaining -= weights[t];
        if (weights[t] > weights[largest]) largest = t;
    }
    weights[largest] = static_cast<std::int16_t>(weights[largest] + remaining);
}

// Rounds weights to kManyBits. They are so small that the rounding error would not show in any of them.
void round_many(const std::vector<double>& exact, double sum, std::int32_t* weights) {
    for (std::size_t t = 0; t < exact.size(); ++t)
        weights[t] = static_cast<std::int32_t>(std::lrint(exact[t] / sum * (1 << kManyBits)));
}

// One pixel for each result.
void find_nearest(PictureFilter filter, double from, double to, int size, int results, Weights& result) {
    const double scale = (to - from) / results;
    const double corners = 1 / (results / (to - from));  // as OpenCV rounds it
    double stepped = from + 0.5 * scale;                 // a running sum as in Pillow, which rounds differently
    for (int k = 0; k < results; ++k, stepped += scale) {
        const double at = filter == PictureFilter::nearest ? stepped : from + k * corners;
        result.first[std::size_t(k)] = std::clamp(static_cast<int>(std::floor(at)), 0, size - 1);
        result.few[std::size_t(k) * 2] = 1 << kWeightBits;
    }
}

// Weights for `results` pixels out of the stretch from..to of `size` pixels.
void find_weights(PictureFilter filter, double from, double to, int size, int results, Weights& result,
                  std::vector<double>& exact) {
    const double scale = (to - from) / results;
    const bool nearest = filter == PictureFilter::nearest || filter == PictureFilter::nearest_corner;
    const double stretch = filter == PictureFilter::triangle ? std::max(scale, 1.0) : 1.0;
    const double support = filter == PictureFilter::cubic ? 2 : filter == PictureFilter::lanczos ? 4 : stretch;
    const int limit = nearest ? 1 : static_cast<int>(std::ceil(2 * support));
    result.taps = std::min(limit, size);
    result.taps += result.taps & 1;
    const std::size_t all = std::size_t(results) * std::size_t(result.taps);
    const bool few = result.taps <= kFewTaps;
    result.first.resize(std::size_t(results));
    result.few.assign(few ? all : 0, 0);
    result.many.assign(few ? 0 : all, 0);
    if (nearest) return find_nearest(filter, from, to, size, results, result);
    for (int k = 0; k < results; ++k) {
        const double center = from + (k + 0.5) * scale;
        int low = static_cast<int>(std::floor(center - support + 0.5));
        int high = static_cast<int>(std::floor(center + support + 0.5));
        const bool clipped = filter == PictureFilter::triangle;  // otherwise borders are repeated
        if (clipped) low = std::max(low, 0), high = std::min(high, size);
        const int start = std::clamp(low, 0, std::max(0, size - result.taps));
        result.first[std::size_t(k)] = start;
        exact.assign(std::size_t(result.taps), 0.0);
        double sum = 0;
        for (int at = low; at < high; ++at) {
            const double w = weight(filter, (at + 0.5 - center) / stretch);
            const int place = std::clamp(at, 0, size - 1) - start;
            if (place < 0 || place >= result.taps) continue;
            exact[std::size_t(place)] += w;
            sum += w;
        }
        const std::size_t begin = std::size_t(k) * std::size_t(result.taps);
        if (few)
            round_few(exact, sum, result.few.data() + begin);
        else
            round_many(exact, sum, result.many.data() + begin);
    }
}

// ---- sums of rows -------------------------------------------------------------------------------------------

constexpr int kRowShift = kWeightBits - kBetweenBits;

void add_rows(const std::uint8_t* const* rows, const std::int16_t* weights, int taps, std::size_t i, std::size_t n,
              std::int16_t* out) {
    for (; i < n; ++i) {
        int sum = 1 << (kRowShift - 1);
        for (int t = 0; t < taps; ++t) sum += weights[t] * rows[t][i];
        out[i] = static_cast<std::int16_t>(std::clamp(sum >> kRowShift, -32768, 32767));
    }
}

#if defined(__SSE2__)
void add_rows_sse2(const std::uint8_t* const* rows, const std::int16_t* weights, int taps, std::size_t n,
                   std::int16_t* out) {
    const __m128i zero = _mm_setzero_si128(), rounding = _mm_set1_epi32(1 << (kRowShift - 1));
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i low = rounding, high = rounding;
        for (int t = 0; t < taps; t += 2) {
            const auto a = _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(rows[t] + i)), zero);
            const auto b = _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(rows[t + 1] + i)), zero);
            const auto pair = _mm_set1_epi32((static_cast<int>(weights[t + 1]) * 65536) | (weights[t] & 0xffff));
            low = _mm_add_epi32(low, _mm_madd_epi16(_mm_unpacklo_epi16(a, b), pair));
            high = _mm_add_epi32(high, _mm_madd_epi16(_mm_unpackhi_epi16(a, b), pair));
        }
        const auto packed = _mm_packs_epi32(_mm_srai_epi32(low, kRowShift), _mm_srai_epi32(high, kRowShift));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), packed);
    }
    add_rows(rows, weights, taps, i, n, out);
}
#endif

void add_many_rows(const std::uint8_t* const* rows, const std::int32_t* weights, int taps, std::size_t n,
                   std::int32_t* totals, std::int16_t* out) {
    constexpr int shift = kManyBits - kBetweenBits;
    std::fill_n(totals, n, 1 << (shift - 1));
    for (int t = 0; t < taps; ++t) {
        const std::uint8_t* row = rows[t];
        const std::int32_t of_row = weights[t];
        for (std::size_t i = 0; i < n; ++i) totals[i] += of_row * row[i];
    }
    for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<std::int16_t>(totals[i] >> shift);
}

// ---- results of a row ---------------------------------------------------------------------------------------

constexpr int kColumnShift = kWeightBits + kBetweenBits;

void add_columns(const std::int16_t* in, const Weights& weights, int results, int channels, std::uint8_t* out) {
    const int taps = weights.taps;
    for (int k = 0; k < results; ++k, out += channels) {
        const std::int16_t* from = in + std::size_t(channels) * std::size_t(weights.first[std::size_t(k)]);
        const std::int16_t* weight = weights.of(k);
        for (int c = 0; c < channels; ++c) {
            int sum = 1 << (kColumnShift - 1);
            for (int t = 0; t < taps; ++t) sum += weight[t] * from[t * channels + c];
            out[c] = static_cast<std::uint8_t>(std::clamp(sum >> kColumnShift, 0, 255));
        }
    }
}

#if defined(__SSE2__)
void add_columns_sse2(const std::int16_t* in, const Weights& weights, int results, std::uint8_t* out) {
    const int taps = weights.taps;
    for (int k = 0; k < results; ++k, out += 3) {
        const std::int16_t *from = in + 3 * std::size_t(weights.first[std::size_t(k)]), *weight = weights.of(k);
        __m128i sum = _mm_set1_epi32(1 << (kColumnShift - 1));
        for (int t = 0; t < taps; t += 2, from += 6) {
            const auto a = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
            const auto b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + 3));
            const auto pair = _mm_set1_epi32((static_cast<int>(weight[t + 1]) * 65536) | (weight[t] & 0xffff));
            sum = _mm_add_epi32(sum, _mm_madd_epi16(_mm_unpacklo_epi16(a, b), pair));
        }
        const auto words = _mm_packs_epi32(_mm_srai_epi32(sum, kColumnShift), _mm_setzero_si128());
        const int pixel = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
        out[0] = static_cast<std::uint8_t>(pixel);
        out[1] = static_cast<std::uint8_t>(pixel >> 8);
        out[2] = static_cast<std::uint8_t>(pixel >> 16);
    }
}
#endif

void add_many_columns(const std::int16_t* in, const Weights& weights, int results, int channels, std::uint8_t* out) {
    constexpr int shift = kManyBits + kBetweenBits;
    for (int k = 0; k < results; ++k) {
        const std::int16_t* from = in + std::size_t(channels) * std::size_t(weights.first[std::size_t(k)]);
        const std::int32_t* weight = weights.many_of(k);
        for (int c = 0; c < channels; ++c) {
            std::int64_t sum = std::int64_t{1} << (shift - 1);
            for (int t = 0; t < weights.taps; ++t) sum += std::int64_t{weight[t]} * from[t * channels + c];
            *out++ = static_cast<std::uint8_t>(std::clamp<std::int64_t>(sum >> shift, 0, 255));
        }
    }
}

// ---- both ---------------------------------------------------------------------------------------------------

// Arranges weights as `add_columns_avx2` takes them.
void spread_weights(Weights& weights, int results, std::vector<std::int32_t>& lanes) {
    const std::size_t pairs = std::size_t(weights.taps) / 2, four = (std::size_t(results) + 3) / 4 * 4;
    weights.first.resize(four, weights.first.back());
    lanes.assign(four * pairs * 4, 0);
    for (std::size_t k = 0; k < std::size_t(results); ++k) {
        const std::int16_t* weight = weights.of(static_cast<int>(k));
        for (std::size_t p = 0; p < pairs; ++p)
            std::fill_n(lanes.data() + ((k / 2 * pairs + p) * 2 + k % 2) * 4, 4,
                        (static_cast<std::int32_t>(weight[2 * p + 1]) * 65536) | (weight[2 * p] & 0xffff));
    }
}

void resize_with(Memory& memory, const Pixels& in, double x0, double y0, double x1, double y1, PictureFilter filter,
                 int width, int height, std::uint8_t* out, PictureRows* taken_by) {
    Weights &across = memory.across, &down = memory.down;
    const int channels = in.channels;
    const std::size_t n = in.stride();
    find_weights(filter, x0, x1, in.width, width, across, memory.exact);
    find_weights(filter, y0, y1, in.height, height, down, memory.exact);
    // Columns with a weight of 0 may be beyond the end.
    memory.sums.assign(n + std::size_t(across.taps * channels) + kSlack, 0);
    memory.rows.resize(std::size_t(down.taps));
    if (!down.many.empty()) memory.totals.resize(n);
    [[maybe_unused]] const bool wide = cpu().avx2;
    [[maybe_unused]] const bool vectors = cpu().sse41;  // no SSE2 either if FEEDLINE_SIMD asks for portable code
    const bool in_lanes = wide && channels == 3 && across.many.empty();
    if (in_lanes) spread_weights(across, width, memory.lanes);
    const std::uint8_t** rows = memory.rows.data();
    std::int16_t* sums = memory.sums.data();
    const std::size_t stride = std::size_t(width) * std::size_t(channels);
    memory.end.resize(stride + kSlack);
    for (int y = 0; y < height; ++y) {
        for (int t = 0; t < down.taps; ++t) rows[t] = in.row(std::min(down.first[std::size_t(y)] + t, in.height - 1));
        if (!down.many.empty())
            add_many_rows(rows, down.many_of(y), down.taps, n, memory.totals.data(), sums);
#ifdef FEEDLINE_X86
        else if (wide && n >= 16)
            add_rows_avx2(rows, down.of(y), down.taps, n, sums);
#endif
#ifdef __SSE2__
        else if (vectors)
            add_rows_sse2(rows, down.of(y), down.taps, n, sums);
#endif
        else
            add_rows(rows, down.of(y), down.taps, 0, n, sums);
        // Variants write some bytes after a row. They may be in the next row, but not after the last one.
        const bool near_end = out == nullptr || std::size_t(height - 1 - y) * stride < kSlack;
        std::uint8_t* to = near_end ? memory.end.data() : out + std::size_t(y) * stride;
        if (!across.many.empty())
            add_many_columns(sums, across, width, channels, to);
#ifdef FEEDLINE_X86
        else if (in_lanes)
            add_columns_avx2(sums, across.first.data(), memory.lanes.data(), across.taps / 2, width, to);
#endif
#ifdef __SSE2__
        else if (vectors && channels == 3)
            add_columns_sse2(sums, across, width, to);
#endif
        else
            add_columns(sums, across, width, channels, to);
        if (out == nullptr)
            taken_by->take(y, to);
        else if (near_end)
            std::memcpy(out + std::size_t(y) * stride, to, stride);
    }
}

}  // namespace

void resize_pixels(const Pixels& in, double x0, double y0, double x1, double y1, int width, int height,
                   PictureFilter filter, std::uint8_t* out, PictureRows* rows) {
    static thread_local Memory kept;
    Memory& memory = kept;  // looked up once
    resize_with(memory, in, x0, y0, x1, y1, filter, width, height, out, rows);
    if (memory.bytes() > kMaxIdleBytes) memory = Memory();
}

}  // namespace feedline
