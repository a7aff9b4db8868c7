// Updates, on memory that ends exactly where the data ends: every rule, with any number of elements, every combination
// of types, and threads. Meant for ASan + UBSan (`make sanitize`).
#include "feedline/update.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"

using namespace feedline;

namespace {

// Memory of n elements, all of about 1.
struct Memory {
    std::unique_ptr<std::byte[]> bytes;
    FloatArray array;
    std::size_t size;

    Memory(FloatType type, std::size_t n) : bytes(new std::byte[n * float_bytes(type)]), size(n * float_bytes(type)) {
        array = {bytes.get(), type};
        for (std::size_t i = 0; i < n; ++i) {
            const double wide = 1.0 + 0.5 * static_cast<double>(i % 2);
            const float single = static_cast<float>(wide);
            const std::uint16_t one = type == FloatType::float16 ? 0x3C00 : 0x3F80;
            const std::uint16_t more = type == FloatType::float16 ? 0x3E00 : 0x3FC0, half = i % 2 ? more : one;
            const void* from = type == FloatType::float64   ? static_cast<const void*>(&wide)
                               : type == FloatType::float32 ? static_cast<const void*>(&single)
                                                            : static_cast<const void*>(&half);
            std::memcpy(bytes.get() + i * float_bytes(type), from, float_bytes(type));
        }
    }
};

std::vector<std::vector<std::byte>> written(std::size_t rule, FloatType weight, FloatType gradient, FloatType state,
                                            const std::vector<std::size_t>& counts, std::size_t threads) {
    const UpdateRule& about = update_rules()[rule];
    std::vector<double> numbers(about.numbers, 0.25);
    UpdateStages stages;
    stages.decay_before_clipping = stages.decay_after_clipping = 0.1;
    stages.limit = 1.25;
    stages.noise_factor = 0.1;
    stages.shrink = 0.01;
    stages.bound = 1.75;
    std::vector<Memory> arrays;
    std::vector<Update> updates;
    arrays.reserve(counts.size() * (4 + kMaxStates));
    const auto make = [&](FloatType type, std::size_t n) { return arrays.emplace_back(type, n).array; };
    for (const std::size_t n : counts) {
        Update one;
        one.count = n;
        one.factor = 0.5;
        one.weight = make(weight, n);
        one.gradient = make(gradient, n);
        one.noise = make(gradient, n);
        one.copy = make(FloatType::bfloat16, n);
        for (std::size_t k = 0; k < about.states; ++k) one.states[k] = make(state, n);
        updates.push_back(one);
    }
    Updates work(rule, numbers.data(), stages, updates);
    const auto share = [&](auto run) {
        std::vector<std::thread> helpers;
        for (std::size_t t = 0; t < threads; ++t)
            helpers.emplace_back([&, t] {
                for (std::size_t k = t; k < work.chunks(); k += threads) run(k);
            });
        for (std::thread& helper : helpers) helper.join();
    };
    share([&](std::size_t k) { work.run(k); });
    if (work.needs_second_pass()) {
        work.combine_sums();
        share([&](std::size_t k) { work.run_second_pass(k); });
    }
    std::vector<std::vector<std::byte>> found;
    for (const Memory& one : arrays) found.emplace_back(one.bytes.get(), one.bytes.get() + one.size);
    return found;
}

void test_rules() {
    const std::vector<std::size_t> counts = {0, 1, 31, 1025, 40000};
    const FloatType types[] = {FloatType::float32, FloatType::float64, FloatType::float16, FloatType::bfloat16};
    for (std::size_t rule = 0; rule < update_rules().size(); ++rule) {
        for (const FloatType weight : types) {
            for (const FloatType gradient : types) {
                const FloatType state = weight == FloatType::float64 ? weight : FloatType::float32;
                const auto alone = written(rule, weight, gradient, state, counts, 1);
                CHECK(alone == written(rule, weight, gradient, state, counts, 3));
            }
            written(rule, weight, weight, weight, counts, 2);
        }
    }
}

void test_numbers() {
    Memory weight(FloatType::float64, 3), gradient(FloatType::float32, 3);
    Update one;
    one.count = 3;
    one.weight = weight.array;
    one.gradient = gradient.array;
    const double along = -0.5;
    CHECK(update_rules()[0].name == "step");
    Updates work(0, &along, UpdateStages{}, {one});
    for (std::size_t k = 0; k < work.chunks(); ++k) work.run(k);
    const double expected[3] = {0.5, 0.75, 0.5};
    CHECK(!work.needs_second_pass());
    CHECK(std::memcmp(weight.bytes.get(), expected, sizeof expected) == 0);
}

void test_squares() {
    for (const FloatType type : {FloatType::float32, FloatType::float64, FloatType::float16, FloatType::bfloat16}) {
        for (const std::size_t n : {0, 1, 33, 70001}) {
            const Memory memory(type, n);
            SquareSums work({memory.array}, {n});
            for (std::size_t k = 0; k < work.chunks(); ++k) work.run(k);
            const double ones = static_cast<double>((n + 1) / 2), others = static_cast<double>(n / 2);
            CHECK(work.sums()[0] == ones + 2.25 * others);
        }
    }
}

}  // namespace

int main() {
    test_rules();
    test_numbers();
    test_squares();
    std::puts("update: ok");
}
