// Changes of colours. They differ from torchvision's functional operations on uint8 by at most one level.
#include <algorithm>
#include <cmath>

#include "feedline/cpu.h"
#include "feedline/pictures.h"
#include "picture_ops.h"
#include "picture_variants.h"

namespace feedline {

namespace {

[[maybe_unused]] bool in_avx2() {
#ifdef FEEDLINE_X86
    return cpu().avx2;
#else
    return false;
#endif
}

std::uint8_t clipped(float value) { return static_cast<std::uint8_t>(std::clamp(value, 0.0f, 255.0f)); }

std::uint8_t grey_of(const std::uint8_t* rgb, int red) {
    return static_cast<std::uint8_t>(float(rgb[red]) * 0.2989f + float(rgb[1]) * 0.587f + float(rgb[2 - red]) * 0.114f);
}

// factor * level + (1 - factor) * other, rounded down and clipped.
void blend_with(Pixels& pixels, float factor, float other) {
    const float share = (1.0f - factor) * other;
    std::uint8_t* levels = pixels.row(0);
    std::size_t i = 0;
#ifdef FEEDLINE_X86
    if (in_avx2()) i = blend_avx2(levels, pixels.size(), factor, share);
#endif
    std::uint8_t table[256];
    for (int v = 0; v < 256; ++v) table[v] = clipped(factor * float(v) + share);
    for (; i < pixels.size(); ++i) levels[i] = table[levels[i]];
}

float mean_grey(const Pixels& pixels, int red) {
    const std::uint8_t* p = pixels.row(0);
    const std::size_t n = pixels.size() / std::size_t(pixels.channels);
    std::uint64_t sum = 0;
    std::size_t i = 0;
    if (pixels.channels == 1) {
        for (; i < n; ++i) sum += p[i];
    } else {
#ifdef FEEDLINE_X86
        if (in_avx2()) i = sum_greys_avx2(p, n, red, &sum);
#endif
        for (; i < n; ++i) sum += grey_of(p + 3 * i, red);
    }
    return static_cast<float>(double(sum) / double(n));
}

void saturate(Pixels& pixels, float factor, int red) {
    std::uint8_t* p = pixels.row(0);
    const std::size_t n = pixels.size() / 3;
    std::size_t i = 0;
#ifdef FEEDLINE_X86
    if (in_avx2()) i = saturate_avx2(p, n, factor, red);
#endif
    for (p += 3 * i; i < n; ++i, p += 3) {
        const float grey = (1.0f - factor) * float(grey_of(p, red));
        for (int c = 0; c < 3; ++c) p[c] = clipped(factor * float(p[c]) + grey);
    }
}

// Turns the hue by `shift` of a full circle, in HSV.
void shift_hue(Pixels& pixels, float shift, int red) {
    std::uint8_t* p = pixels.row(0);
    const std::size_t n = pixels.size() / 3;
    std::size_t i = 0;
#ifdef FEEDLINE_X86
    if (in_avx2()) i = shift_hue_avx2(p, n, shift, red);
#endif
    for (p += 3 * i; i < n; ++i, p += 3) {
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
    for (const int change : order) {
        const double full_turns = change == 3 && std::abs(numbers[3]) > 1 ? std::floor(numbers[3]) : 0;
        const float number = static_cast<float>(numbers[change] - full_turns);
        if (change == 0 && number != 1.0f) {
            blend_with(pixels, number, 0.0f);
        } else if (change == 1 && number != 1.0f) {
            blend_with(pixels, number, mean_grey(pixels, red));
        } else if (pixels.channels == 3 && change == 2 && number != 1.0f) {
            saturate(pixels, number, red);
        } else if (pixels.channels == 3 && change == 3 && number != 0.0f) {
            shift_hue(pixels, number, red);
        }
    }
}

}  // namespace feedline
