// SPDX-License-Identifier: Apache-2.0
// The loops of update.cpp for one instruction set, by rule.
#pragma once

#include <cstddef>

#include "feedline/update.h"

namespace feedline {

// The sums over a whole weight that a rule needs before it changes the weight.
enum class Sums {
    none,
    mean,   // of its terms
    norms,  // of the weight, and of its terms
};

// Loops over n elements. `rule` points to the numbers of the rule's struct, as C.
template <class C>
struct RuleLoops {
    using Run = void (*)(const void* rule, C factor, C decay, C* w, const C* g, C* const* states, std::size_t n,
                         C* terms);
    using Again = void (*)(const void* rule, C factor, C decay, C* w, const C* g, C* const* states, std::size_t n,
                           C coefficient);
    const char* name;
    std::size_t states, numbers;
    Sums sums;
    // Without decay, and with; `again` is null for Sums::none.
    Run run[2];
    Again again[2];
};

constexpr std::size_t kUpdateRules = 18;

template <class C>
struct UpdateLoops {
    RuleLoops<C> rules[kUpdateRules];
    void (*prepare)(const UpdateStages& stages, C factor, const C* w, const C* g, std::size_t n, C* out);
    void (*finish)(const UpdateStages& stages, const C* noise, std::size_t n, C* w);
    double (*sum)(const C* x, std::size_t n);
    double (*sum_squares)(const C* x, std::size_t n);
};

template <class C>
const UpdateLoops<C>& update_loops_avx2();

}  // namespace feedline
