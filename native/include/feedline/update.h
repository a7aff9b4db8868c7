// SPDX-License-Identifier: Apache-2.0
// Updates of weights by the rules of optimizers: everything that an update does, in one pass over memory.
//
// For each element of a weight w with gradient g:
//
//   g = factor * g + inner * w              scale, and weight decay that is clipped with the gradient
//   g = clamp(g, -limit, limit)
//   g = g + outer * w                       weight decay that is not
//   w, states = rule(w, g, states)          one struct each in src/update_rules.h, with its formula and numbers
//   w = w + noise_factor * noise
//   w = w - clamp(w, -shrink, shrink)       towards zero
//   w = clamp(w, -bound, bound)
//
// A stage whose number has no effect (0, infinity, no array) is left out; all comparisons let NaN through. Some rules
// need sums over a whole weight first (`twice`): they pass over a large weight twice.
//
// Arithmetic is in double precision for float64 weights, otherwise in single. An array may be of any of four types; the
// weight and what else is written is rounded once. Results are the same to the bit for any number of threads and on any
// processor: sums have an order that depends on nothing but sizes, and multiplications are not fused with additions.
//
// Cost: each array is read once, and what is changed is written once; O(elements).
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
    double inner = 0;
    double limit = std::numeric_limits<double>::infinity();
    double outer = 0;
    double noise_factor = 0;
    double shrink = 0;
    double bound = std::numeric_limits<double>::infinity();
};

struct UpdateRule {
    std::string_view name;
    std::size_t states, numbers;
    bool twice;
};

// The rules, in the order of `Updates`'s argument.
const std::vector<UpdateRule>& update_rules();

// Updates of several weights by one rule, in chunks that threads may do in any order.
class Updates {
public:
    // `numbers` as many as the rule has. Weights are all float64 or all others. What is written by some updates may
    // overlap only if one thread does all chunks.
    Updates(std::size_t rule, const double* numbers, const UpdateStages& stages, std::vector<Update> updates);

    std::size_t chunks() const { return chunks_.size(); }
    // Does a chunk; for a rule that goes `twice`, its first pass.
    void run(std::size_t chunk);
    // After all chunks, if `again`: one thread settles sums, then all chunks are run again.
    bool again() const { return again_; }
    void settle();
    void run_again(std::size_t chunk);

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
    bool wide_, again_;
};

// The sum of squares of each array, in double precision; chunks as of `Updates`.
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
