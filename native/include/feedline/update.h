// SPDX-License-Identifier: Apache-2.0
// Updates of weights by the rules of optimizers, with all stages in one pass over memory.
//
// For each element of a weight w with gradient g:
//
//   g = factor * g + decay_before_clipping * w    scale, and weight decay that is clipped with the gradient
//   g = clamp(g, -limit, limit)
//   g = g + decay_after_clipping * w              weight decay that is not clipped
//   w, states = rule(w, g, states)                src/update_rules.h has a struct for each, with formula and numbers
//   w = w + noise_factor * noise
//   w = w - clamp(w, -shrink, shrink)             towards zero
//   w = clamp(w, -bound, bound)
//
// A stage whose number has no effect (0, infinity, no array) is left out. A NaN passes all comparisons unchanged. Some
// rules need sums over a whole weight first, so they pass over a large weight twice (`two_passes`).
//
// Arithmetic is in double precision for float64 weights, otherwise in single. An array may have any of four types, and
// each number that is written is rounded once. Results have the same bits for any number of threads and on any
// processor: the order of sums depends only on sizes, and multiplications are not fused with additions.
//
// Cost: each array is read once, and each changed one written once. O(elements).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

namespace feedline {

enum class FloatType : std::uint8_t { float32, float64, float16, bfloat16 };

constexpr std::size_t float_bytes(FloatType type) {
    return type == FloatType::float64 ? 8 : type == FloatType::float32 ? 4 : 2;
}

// The elements of an array, which stays the caller's.
struct FloatArray {
    std::byte* data = nullptr;
    FloatType type = FloatType::float32;
};

constexpr std::size_t kMaxStates = 3;

// One weight. No two of its arrays may overlap.
struct Update {
    std::size_t count = 0;  // elements
    double factor = 1;      // of the gradient
    FloatArray weight, gradient;
    FloatArray states[kMaxStates];
    FloatArray noise;  // optional
    FloatArray copy;   // optional: receives the weight, rounded to its type
};

struct UpdateStages {
    double decay_before_clipping = 0;
    double limit = std::numeric_limits<double>::infinity();
    double decay_after_clipping = 0;
    double noise_factor = 0;
    double shrink = 0;
    double bound = std::numeric_limits<double>::infinity();
};

struct UpdateRule {
    std::string_view name;
    std::size_t states, numbers;
    bool two_passes;
};

// The rules, by the number that `Updates` takes.
const std::vector<UpdateRule>& update_rules();

// Updates of several weights by one rule, in chunks that threads may do in any order.
class Updates {
public:
    // numbers: as many as the rule has. Either all weights are float64, or none. Arrays that some updates write may
    // overlap arrays of other updates only if one thread does all chunks. Throws bad_alloc.
    Updates(std::size_t rule, const double* numbers, const UpdateStages& stages, std::vector<Update> updates);

    std::size_t chunks() const { return chunks_.size(); }
    // Does a chunk, or for a rule with two passes its first pass.
    void run(std::size_t chunk);
    // Whether a second pass is needed after all chunks. Then one thread calls combine_sums(), and all chunks are run
    // again by run_second_pass().
    bool needs_second_pass() const { return needs_second_pass_; }
    void combine_sums();
    void run_second_pass(std::size_t chunk);

private:
    struct Chunk {
        std::size_t update, begin, end;
        double sums[2];
    };
    template <class C>
    void pass(const Chunk& chunk, bool second, double coefficient, double* sums);
    double coefficient(std::size_t first, std::size_t last) const;

    std::size_t rule_;
    std::vector<double> numbers_;
    UpdateStages stages_;
    std::vector<Update> updates_;
    std::vector<Chunk> chunks_;
    std::vector<double> coefficients_;  // by update
    bool wide_, needs_second_pass_;
};

// The sum of squares of each array, in double precision, in chunks that threads may do in any order.
class SquareSums {
public:
    SquareSums(std::vector<FloatArray> arrays, const std::vector<std::size_t>& counts);
    std::size_t chunks() const { return chunks_.size(); }
    void run(std::size_t chunk);
    // The sum for each array, after all chunks.
    std::vector<double> sums() const;

private:
    struct Chunk {
        std::size_t array, begin, end;
        double sum;
    };
    std::vector<FloatArray> arrays_;
    std::vector<Chunk> chunks_;
};

}  // namespace feedline
