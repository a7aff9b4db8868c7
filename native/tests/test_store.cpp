// Merge and quantize kernels, on memory that ends exactly where the data ends. With -DFEEDLINE_SANITIZE=ON any read or
// write beyond it ends the program.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "feedline/merge.h"
#include "feedline/quantize.h"
#include "check.h"

using namespace feedline;

static std::mt19937_64 rng(11);

template <class T>
static std::unique_ptr<T[]> random_values(std::size_t n) {
    std::unique_ptr<T[]> values(new T[n]);
    std::normal_distribution<double> normal;
    for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<T>(normal(rng));
    return values;
}

template <class T>
static void test_merge() {
    for (const bool streaming : {false, true}) {
        for (std::size_t inputs = 1; inputs <= 7; ++inputs) {
            const std::vector<std::size_t> counts = {0, 1, 3, 17, 5000, 4099};
            std::vector<std::vector<std::unique_ptr<T[]>>> in, out;
            std::vector<std::vector<const T*>> in_places(counts.size());
            std::vector<std::vector<T*>> out_places(counts.size());
            std::vector<Merge<T>> merges;
            std::size_t total = 0;
            for (std::size_t j = 0; j < counts.size(); ++j) {
                in.emplace_back();
                out.emplace_back();
                for (std::size_t k = 0; k < inputs; ++k) {
                    in[j].push_back(random_values<T>(counts[j]));
                    in_places[j].push_back(in[j][k].get());
                }
                for (std::size_t k = 0; k < 2; ++k) {
                    out[j].push_back(random_values<T>(counts[j]));
                    out_places[j].push_back(out[j][k].get());
                }
            }
            std::vector<std::vector<T>> expected(counts.size());
            for (std::size_t j = 0; j < counts.size(); ++j) {
                for (std::size_t i = 0; i < counts[j]; ++i) {
                    T sum = in[j][0][i];
                    for (std::size_t k = 1; k < inputs; ++k) sum += in[j][k][i];
                    expected[j].push_back(sum);
                }
                // The last input is also an output.
                out_places[j].push_back(in[j][inputs - 1].get());
                merges.push_back({in_places[j].data(), inputs, out_places[j].data(), 3, counts[j]});
                total += counts[j];
            }
            const std::size_t cut = total / 3 + 1;
            merge(merges.data(), merges.size(), cut, total, streaming);
            merge(merges.data(), merges.size(), 0, cut, streaming);
            for (std::size_t j = 0; j < counts.size(); ++j)
                for (T* place : out_places[j])
                    CHECK(counts[j] == 0 || std::memcmp(place, expected[j].data(), counts[j] * sizeof(T)) == 0);
        }
    }
}

static void test_quantize() {
    for (const std::size_t n : {0u, 1u, 3u, 4u, 7u, 8u, 9u, 31u, 33u, 4099u}) {
        const float threshold = 0.5f;
        const auto gradient = random_values<float>(n), residual = random_values<float>(n);
        if (n > 2) gradient[1] = std::numeric_limits<float>::quiet_NaN();
        for (const unsigned bits : {1u, 2u}) {
            std::unique_ptr<float[]> left(new float[n]), decoded(new float[n]);
            std::unique_ptr<std::uint8_t[]> codes(new std::uint8_t[quantized_bytes(n, bits)]);
            const auto encode = bits == 2 ? quantize_two_bits : quantize_one_bit;
            encode(gradient.get(), residual.get(), n, threshold, left.get(), codes.get());
            if (bits == 2)
                dequantize_two_bits(codes.get(), n, threshold, decoded.get());
            else
                dequantize_one_bit(codes.get(), n, decoded.get());
            for (std::size_t i = 0; i < n; ++i) {
                const float r = residual[i] + gradient[i];
                const float sent = bits == 1 ? (r > threshold ? 1.0f : -1.0f)
                                             : (r >= threshold ? threshold : r <= -threshold ? -threshold : 0.0f);
                const float rest = r - sent;
                CHECK(decoded[i] == sent);
                CHECK(std::memcmp(&left[i], &rest, sizeof rest) == 0);
            }
            // In place.
            std::unique_ptr<float[]> kept(new float[n]);
            if (n > 0) std::memcpy(kept.get(), residual.get(), n * sizeof(float));
            encode(gradient.get(), kept.get(), n, threshold, kept.get(), codes.get());
            CHECK(n == 0 || std::memcmp(kept.get(), left.get(), n * sizeof(float)) == 0);
        }
    }
}

int main() {
    test_merge<float>();
    test_merge<double>();
    test_quantize();
    std::puts("store: ok");
    return 0;
}
