// SPDX-License-Identifier: Apache-2.0
// What an instruction set contributes to update.cpp: its loops, by rule.
#pragma once

#include <cstddef>

#include "feedline/update.h"

namespace feedline {

// What a rule needs to know of a whole weight before it changes it.
enum class Sums {
    none,
    mean,   // one over the mean of its terms
    norms,  // the norm of the weight, and that of its terms
};

// Loops over n elements. `rule` is the struct of the rule: its numbers, as C.
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
