#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <vector>

#include "feedline/pictures.h"
#include "picture_ops.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace feedline {

void Pixels::reshape(int w, int h, int c) {
    const std::size_t size = std::size_t(w) * std::size_t(h) * std::size_t(c);
    // Some bytes more than pixels: vector loads look past the last one.
    if (size + kSlack > capacity_) {
        memory_.reset(new std::uint8_t[size + kSlack]);
        capacity_ = size + kSlack;
    }
    width = w, height = h, channels = c;
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

// ---- resizing -----------------------------------------------------------------------------------------------

namespace {

constexpr int kWeightBits = 14, kBetweenBits = 6;

// Which pixels make each result, and how much of each: `taps` weights for every result, whose sum is 2^kWeightBits.
// The number of taps is even, so that they can be multiplied in pairs; weights beyond the needed ones are 0.
struct Weights {
    int taps = 0;
    std::vector<int> first;
    std::vector<std::int16_t> weights;

    const std::int16_t* of(int k) const { return weights.data() + std::size_t(k) * std::size_t(taps); }
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

// Weights for `results` pixels out of the stretch from..to of `size` pixels.
void find_weights(PictureFilter filter, double from, double to, int size, int results, Weights& found) {
    const double scale = (to - from) / results;
    const bool one = filter == PictureFilter::nearest || filter == PictureFilter::nearest_corner;
    const double stretch = filter == PictureFilter::triangle ? std::max(scale, 1.0) : 1.0;
    const double support = filter == PictureFilter::cubic ? 2 : filter == PictureFilter::lanczos ? 4 : stretch;
    const int most = one ? 1 : static_cast<int>(std::ceil(2 * support));
    found.taps = std::min(most, size);
    found.taps += found.taps & 1;
    found.first.resize(std::size_t(results));
    found.weights.assign(std::size_t(results) * std::size_t(found.taps), 0);
    std::vector<double> exact(std::size_t(found.taps));
    double stepped = from + 0.5 * scale;  // a sum, as Pillow's: products round otherwise between two pixels
    for (int k = 0; k < results; ++k, stepped += scale) {
        auto* weights = found.weights.data() + std::size_t(k) * std::size_t(found.taps);
        if (one) {
            const double at = filter == PictureFilter::nearest ? stepped : from + k * scale;
            found.first[std::size_t(k)] = std::clamp(static_cast<int>(std::floor(at)), 0, size - 1);
            weights[0] = 1 << kWeightBits;
            continue;
        }
        const double center = from + (k + 0.5) * scale;
        int low = static_cast<int>(std::floor(center - support + 0.5));
        int high = static_cast<int>(std::floor(center + support + 0.5));
        const bool clipped = filter == PictureFilter::triangle;  // else borders are repeated
        if (clipped) low = std::max(low, 0), high = std::min(high, size);
        const int start = std::clamp(low, 0, std::max(0, size - found.taps));
        found.first[std::size_t(k)] = start;
        std::fill(exact.begin(), exact.end(), 0.0);
        double sum = 0;
        for (int at = low; at < high; ++at) {
            const double w = weight(filter, (at + 0.5 - center) / stretch);
            const int place = std::clamp(at, 0, size - 1) - start;
            if (place < 0 || place >= found.taps) continue;
            exact[std::size_t(place)] += w;
            sum += w;
        }
        int left = 1 << kWeightBits, largest = 0;
        for (int t = 0; t < found.taps; ++t) {
            const double w = exact[std::size_t(t)] / sum * (1 << kWeightBits);
            weights[t] = static_cast<std::int16_t>(std::lrint(w));
            left -= weights[t];
            if (weights[t] > weights[largest]) largest = t;
        }
        weights[largest] = static_cast<std::int16_t>(weights[largest] + left);  // equal pixels stay what they are
    }
}

// One row of sums over rows: out[i] = sum of weights[t] * rows[t][i], with kBetweenBits fractional bits.
void add_rows(const std::uint8_t* const* rows, const std::int16_t* weights, int taps, std::size_t n,
              std::int16_t* out) {
    constexpr int shift = kWeightBits - kBetweenBits, half = 1 << (shift - 1);
    std::size_t i = 0;
#if defined(__SSE2__)
    const __m128i zero = _mm_setzero_si128(), rounding = _mm_set1_epi32(half);
    for (; i + 8 <= n; i += 8) {
        __m128i low = rounding, high = rounding;
        for (int t = 0; t < taps; t += 2) {
            const auto a = _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(rows[t] + i)), zero);
            const auto b = _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(rows[t + 1] + i)), zero);
            const auto pair = _mm_set1_epi32((static_cast<int>(weights[t + 1]) * 65536) | (weights[t] & 0xffff));
            low = _mm_add_epi32(low, _mm_madd_epi16(_mm_unpacklo_epi16(a, b), pair));
            high = _mm_add_epi32(high, _mm_madd_epi16(_mm_unpackhi_epi16(a, b), pair));
        }
        const auto packed = _mm_packs_epi32(_mm_srai_epi32(low, shift), _mm_srai_epi32(high, shift));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), packed);
    }
#endif
    for (; i < n; ++i) {
        int sum = half;
        for (int t = 0; t < taps; ++t) sum += weights[t] * rows[t][i];
        out[i] = static_cast<std::int16_t>(std::clamp(sum >> shift, -32768, 32767));
    }
}

// One row of results out of a row of sums. `in` may be read up to kSlack bytes past its end.
void add_columns(const std::int16_t* in, const Weights& weights, int results, int channels, std::uint8_t* out) {
    constexpr int shift = kWeightBits + kBetweenBits, half = 1 << (shift - 1);
    const int taps = weights.taps;
    if (channels == 1) {
        for (int k = 0; k < results; ++k) {
            const std::int16_t *from = in + weights.first[std::size_t(k)], *weight = weights.of(k);
            int sum = half;
            for (int t = 0; t < taps; ++t) sum += weight[t] * from[t];
            out[k] = static_cast<std::uint8_t>(std::clamp(sum >> shift, 0, 255));
        }
        return;
    }
    for (int k = 0; k < results; ++k, out += 3) {
        const std::int16_t *from = in + 3 * std::size_t(weights.first[std::size_t(k)]), *weight = weights.of(k);
#if defined(__SSE2__)
        __m128i sum = _mm_set1_epi32(half);
        for (int t = 0; t < taps; t += 2, from += 6) {
            const auto a = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
            const auto b = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + 3));
            const auto pair = _mm_set1_epi32((static_cast<int>(weight[t + 1]) * 65536) | (weight[t] & 0xffff));
            sum = _mm_add_epi32(sum, _mm_madd_epi16(_mm_unpacklo_epi16(a, b), pair));
        }
        const auto words = _mm_packs_epi32(_mm_srai_epi32(sum, shift), _mm_setzero_si128());
        const int pixel = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
        out[0] = static_cast<std::uint8_t>(pixel);
        out[1] = static_cast<std::uint8_t>(pixel >> 8);
        out[2] = static_cast<std::uint8_t>(pixel >> 16);
#else
        for (int c = 0; c < 3; ++c) {
            int sum = half;
            for (int t = 0; t < taps; ++t) sum += weight[t] * from[3 * t + c];
            out[c] = static_cast<std::uint8_t>(std::clamp(sum >> shift, 0, 255));
        }
#endif
    }
}

}  // namespace

void resize_pixels(const Pixels& in, double x0, double y0, double x1, double y1, int width, int height,
                   PictureFilter filter, Pixels& out) {
    static thread_local Weights across, down;
    static thread_local std::vector<std::int16_t> sums;
    static thread_local std::vector<const std::uint8_t*> rows;
    find_weights(filter, x0, x1, in.width, width, across);
    find_weights(filter, y0, y1, in.height, height, down);
    out.reshape(width, height, in.channels);
    // Weights of 0 are for columns that may lie past the end.
    sums.assign(in.stride() + std::size_t(across.taps * in.channels) + kSlack, 0);
    rows.resize(std::size_t(down.taps));
    for (int y = 0; y < height; ++y) {
        for (int t = 0; t < down.taps; ++t)
            rows[std::size_t(t)] = in.row(std::min(down.first[std::size_t(y)] + t, in.height - 1));
        add_rows(rows.data(), down.of(y), down.taps, in.stride(), sums.data());
        add_columns(sums.data(), across, width, in.channels, out.row(y));
    }
}

// ---- the others ---------------------------------------------------------------------------------------------

void crop_pixels(const Pixels& in, Region r, Pixels& out) {
    out.reshape(r.width, r.height, in.channels);
    const std::size_t offset = std::size_t(r.x) * std::size_t(in.channels);
    for (int y = 0; y < r.height; ++y) std::memcpy(out.row(y), in.row(r.y + y) + offset, out.stride());
}

void flip_pixels(Pixels& pixels, bool mirrored, bool upside_down) {
    if (mirrored) {
        const int channels = pixels.channels;
        for (int y = 0; y < pixels.height; ++y) {
            std::uint8_t *a = pixels.row(y), *b = a + pixels.stride() - std::size_t(channels);
            for (; a < b; a += channels, b -= channels)
                for (int c = 0; c < channels; ++c) std::swap(a[c], b[c]);
        }
    }
    if (upside_down)
        for (int y = 0; y < pixels.height / 2; ++y)
            std::swap_ranges(pixels.row(y), pixels.row(y) + pixels.stride(), pixels.row(pixels.height - 1 - y));
}

void pad_pixels(const Pixels& in, int left, int top, int right, int bottom, bool edge, std::uint8_t value,
                Pixels& out) {
    const std::size_t channels = std::size_t(in.channels);
    out.reshape(left + in.width + right, top + in.height + bottom, in.channels);
    for (int y = 0; y < out.height; ++y) {
        std::uint8_t* to = out.row(y);
        const int at = y - top;
        if (!edge && (at < 0 || at >= in.height)) {
            std::memset(to, value, out.stride());
            continue;
        }
        const std::uint8_t* from = in.row(std::clamp(at, 0, in.height - 1));
        std::uint8_t *middle = to + std::size_t(left) * channels, *end = middle + in.stride();
        std::memcpy(middle, from, in.stride());
        if (!edge) {
            std::memset(to, value, std::size_t(left) * channels);
            std::memset(end, value, std::size_t(right) * channels);
            continue;
        }
        for (int x = 0; x < left; ++x) std::memcpy(to + std::size_t(x) * channels, from, channels);
        for (int x = 0; x < right; ++x)
            std::memcpy(end + std::size_t(x) * channels, from + in.stride() - channels, channels);
    }
}

namespace {

std::uint8_t clipped(float value) { return static_cast<std::uint8_t>(std::clamp(value, 0.0f, 255.0f)); }

std::uint8_t grey_of(const std::uint8_t* rgb, int red) {
    return static_cast<std::uint8_t>(float(rgb[red]) * 0.2989f + float(rgb[1]) * 0.587f + float(rgb[2 - red]) * 0.114f);
}

// factor * pixel + (1 - factor) * other, cut off.
void blend_with(Pixels& pixels, float factor, float other) {
    std::uint8_t table[256];
    for (int v = 0; v < 256; ++v) table[v] = clipped(factor * float(v) + (1.0f - factor) * other);
    std::uint8_t* data = pixels.row(0);
    for (std::size_t i = 0; i < pixels.size(); ++i) data[i] = table[data[i]];
}

void saturate(Pixels& pixels, float factor, int red) {
    std::uint8_t* p = pixels.row(0);
    for (std::size_t i = 0; i < pixels.size(); i += 3, p += 3) {
        const float grey = (1.0f - factor) * float(grey_of(p, red));
        for (int c = 0; c < 3; ++c) p[c] = clipped(factor * float(p[c]) + grey);
    }
}

// Turns the hue by `shift` of a full circle, in HSV.
void shift_hue(Pixels& pixels, float shift, int red) {
    std::uint8_t* p = pixels.row(0);
    for (std::size_t i = 0; i < pixels.size(); i += 3, p += 3) {
        const int r = p[red], g = p[1], b = p[2 - red];
        const int value = std::max({r, g, b}), chroma = value - std::min({r, g, b});
        if (chroma == 0) continue;
        const float over = 1.0f / float(chroma);
        float sector = value == r ? float(g - b) * over : value == g ? 2.0f + float(b - r) * over : 4.0f + float(r - g) * over;
        sector = sector / 6.0f + shift;
        sector = (sector - std::floor(sector)) * 6.0f;
        const int order[3] = {5, 3, 1}, place[3] = {red, 1, 2 - red};
        for (int c = 0; c < 3; ++c) {
            float k = float(order[c]) + sector;
            if (k >= 6.0f) k -= 6.0f;
            const float share = std::clamp(std::min(k, 4.0f - k), 0.0f, 1.0f);
            p[place[c]] = clipped(std::floor(float(value) - float(chroma) * share + 0.999f));
        }
    }
}

}  // namespace

void jitter_pixels(Pixels& pixels, const double* numbers, bool bgr) {
    const int red = bgr ? 2 : 0;
    int order[4] = {0, 1, 2, 3};
    for (int k = static_cast<int>(numbers[4]); k > 0; --k) std::next_permutation(order, order + 4);
    for (const int what : order) {
        const float number = static_cast<float>(numbers[what]);
        if (what == 0 && number != 1.0f) {
            blend_with(pixels, number, 0.0f);
        } else if (what == 1 && number != 1.0f) {
            std::uint64_t sum = 0;
            const std::uint8_t* p = pixels.row(0);
            const std::size_t channels = std::size_t(pixels.channels);
            for (std::size_t i = 0; i < pixels.size(); i += channels) sum += channels == 1 ? p[i] : grey_of(p + i, red);
            const double count = double(pixels.size() / channels);
            blend_with(pixels, number, static_cast<float>(double(sum) / count));
        } else if (pixels.channels == 3 && what == 2 && number != 1.0f) {
            saturate(pixels, number, red);
        } else if (pixels.channels == 3 && what == 3 && number != 0.0f) {
            shift_hue(pixels, number, red);
        }
    }
}

void write_floats(const Pixels& pixels, const std::vector<float>& mean, const std::vector<float>& scale, bool planes,
                  float* out) {
    float tables[3][256];
    const std::size_t channels = std::size_t(pixels.channels), n = pixels.size() / channels;
    for (std::size_t c = 0; c < channels; ++c)
        for (int v = 0; v < 256; ++v) tables[c][v] = (float(v) - mean[c]) * scale[c];
    const std::uint8_t* p = pixels.row(0);
    if (channels == 1) {
        for (std::size_t i = 0; i < n; ++i) out[i] = tables[0][p[i]];
    } else if (planes) {
        float *r = out, *g = out + n, *b = out + 2 * n;
        for (std::size_t i = 0; i < n; ++i, p += 3) r[i] = tables[0][p[0]], g[i] = tables[1][p[1]], b[i] = tables[2][p[2]];
    } else {
        for (std::size_t i = 0; i < 3 * n; i += 3)
            for (std::size_t c = 0; c < 3; ++c) out[i + c] = tables[c][p[i + c]];
    }
}

}  // namespace feedline
