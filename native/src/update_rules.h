// SPDX-License-Identifier: Apache-2.0
// The rules of optimizers, one struct each, and the loops around them. Included once for each instruction set, so
// everything is in an unnamed namespace (see CMakeLists.txt).
//
// A rule has its numbers as members, in the order in which they are passed. Its `step` changes the weight and the
// states of one element. If a rule needs sums over the weight, `step` changes the states and sets a `term`, and `again`
// changes the weight, with a coefficient that is computed from the sums.
//
// The numbers are prepared by the caller (src/feedline/updates/formulas.py). `keep` and `hold` multiply the old state
// and the old weight, `fresh` the gradient that is added to a state, `along` (minus the learning rate) and `ahead` the
// state and the gradient that are added to the weight.
#pragma once

#include <cstddef>

#include "update_loops.h"

namespace feedline {
namespace {

inline float root(float x) { return __builtin_sqrtf(x); }
inline double root(double x) { return __builtin_sqrt(x); }
// A NaN is neither above nor below, so it stays. Its sign is 0.
template <class C>
inline C at_most(C x, C limit) { return x > limit ? limit : x; }
template <class C>
inline C at_least(C x, C limit) { return x < limit ? limit : x; }
template <class C>
inline C clamp(C x, C limit) { return at_most(at_least(x, -limit), limit); }
template <class C>
inline C sign(C x) { return static_cast<C>(x > C(0)) - static_cast<C>(x < C(0)); }
template <class C>
inline C magnitude(C x) { return x < C(0) ? -x : x; }
// The larger one; NaN if one is.
template <class C>
inline C larger(C x, C y) { return x > y || x != x ? x : y; }

// w += along g
template <class C>
struct Step {
    static constexpr std::size_t kStates = 0;
    C along;
    void step(C& w, C g) const { w += along * g; }
};

// s = keep s + fresh g; w += along s + ahead g
template <class C>
struct Momentum {
    static constexpr std::size_t kStates = 1;
    C keep, fresh, along, ahead;
    void step(C& w, C g, C& s) const {
        s = keep * s + fresh * g;
        w += along * s + ahead * g;
    }
};

// h = keep h + fresh g²; w = hold w + along g / sqrt(h + epsilon): AdaGrad, and RMSProp where keep < 1
template <class C>
struct AdaGrad {
    static constexpr std::size_t kStates = 1;
    C keep, fresh, epsilon, hold, along;
    void step(C& w, C g, C& h) const {
        h = keep * h + fresh * (g * g);
        w = hold * w + along * g / root(h + epsilon);
    }
};

// h += fresh g²; w += along g f / mean(f) with f = 1 / sqrt(h + epsilon)
template <class C>
struct AveragedAdaGrad {
    static constexpr std::size_t kStates = 1;
    static constexpr Sums kSums = Sums::mean;
    C fresh, epsilon, along;
    void step(C, C g, C& h, C& term) const {
        h += fresh * (g * g);
        term = C(1) / root(h + epsilon);
    }
    void again(C& w, C g, C h, C inverse_mean) const { w += along * g * (inverse_mean / root(h + epsilon)); }
};

// a = keep a + fresh g²; d = sqrt(x + epsilon) / sqrt(a + epsilon) g; x = keep x + fresh d²; w = hold w + along d
template <class C>
struct AdaDelta {
    static constexpr std::size_t kStates = 2;
    C keep, fresh, epsilon, hold, along;
    void step(C& w, C g, C& a, C& x) const {
        a = keep * a + fresh * (g * g);
        const C d = root(x + epsilon) / root(a + epsilon) * g;
        x = keep * x + fresh * (d * d);
        w = hold * w + along * d;
    }
};

// m = keep_mean m + fresh_mean g; v = keep_square v + fresh_square g²;
// w += (along m + ahead g) / (sqrt(unbias v) + epsilon)
template <class C>
struct Adam {
    static constexpr std::size_t kStates = 2;
    C keep_mean, fresh_mean, keep_square, fresh_square, unbias, epsilon, along, ahead;
    void step(C& w, C g, C& m, C& v) const {
        m = keep_mean * m + fresh_mean * g;
        v = keep_square * v + fresh_square * (g * g);
        w += (along * m + ahead * g) / (root(unbias * v) + epsilon);
    }
};

// m = keep_mean m + fresh_mean g; u = max(keep_largest u, size |g|); w += along m / (u + epsilon), or nothing where
// the denominator is 0
template <class C>
struct AdaMax {
    static constexpr std::size_t kStates = 2;
    C keep_mean, fresh_mean, keep_largest, size, epsilon, along;
    void step(C& w, C g, C& m, C& u) const {
        m = keep_mean * m + fresh_mean * g;
        u = larger(size * magnitude(g), keep_largest * u);
        const C below = u + epsilon;
        w += along * m / (below == C(0) ? C(1) : below);
    }
};

// v = keep_square v + fresh_square g²; b = g min(size / sqrt(v), limit); m = keep_mean m + fresh_mean b;
// w += along m + ahead b
template <class C>
struct FSAdaGrad {
    static constexpr std::size_t kStates = 2;
    C keep_square, fresh_square, size, limit, keep_mean, fresh_mean, along, ahead;
    void step(C& w, C g, C& m, C& v) const {
        v = keep_square * v + fresh_square * (g * g);
        const C b = at_most(size / root(v), limit) * g;
        m = keep_mean * m + fresh_mean * b;
        w += along * m + ahead * b;
    }
};

// v = keep v + fresh g², after v = start g² if `first` is 1. Steps grow where the sign of g stays, and shrink
// elsewhere. f = step / sqrt(v + floor), w += along g f
template <class C>
struct RMSProp {
    static constexpr std::size_t kStates = 3;
    C first, start, first_step, keep, fresh, grow, most, lessen, least, floor, along;
    C factor(C g, C& v, C& steps, C& signs) const {
        const bool begins = first != C(0);
        v = keep * (begins ? v + start * (g * g) : v) + fresh * (g * g);
        const C before = begins ? steps + first_step : steps, now = sign(g);
        steps = signs * now > C(0) ? at_most(before * grow, most) : at_least(before * lessen, least);
        signs = now;
        return steps / root(v + floor);
    }
    void step(C& w, C g, C& v, C& steps, C& signs) const { w += along * g * factor(g, v, steps, signs); }
};

// The same with w += along g f / mean(f)
template <class C>
struct AveragedRMSProp : RMSProp<C> {
    static constexpr Sums kSums = Sums::mean;
    void step(C, C g, C& v, C& steps, C& signs, C& term) const { term = this->factor(g, v, steps, signs); }
    void again(C& w, C g, C v, C steps, C, C inverse_mean) const {
        w += this->along * g * (steps / root(v + this->floor) * inverse_mean);
    }
};

// n = keep n + fresh g²; m = keep m + fresh g; d = pace d + along g / sqrt(n - m² + epsilon); w += d
template <class C>
struct CenteredRMSProp {
    static constexpr std::size_t kStates = 3;
    C keep, fresh, epsilon, pace, along;
    void step(C& w, C g, C& n, C& m, C& d) const {
        n = keep * n + fresh * (g * g);
        m = keep * m + fresh * g;
        d = pace * d + along * g / root(n - m * m + epsilon);
        w += d;
    }
};

// v = keep_square v + fresh_square g²; e = (sqrt(unbias v) + epsilon) size;
// z = keep_mean z + fresh_mean g - (e - keep_mean d) w; d = e; w = -z / d
template <class C>
struct FTML {
    static constexpr std::size_t kStates = 3;
    C keep_mean, fresh_mean, keep_square, fresh_square, unbias, epsilon, size;
    void step(C& w, C g, C& d, C& v, C& z) const {
        v = keep_square * v + fresh_square * (g * g);
        const C divisor = (root(unbias * v) + epsilon) * size;
        z = keep_mean * z + fresh_mean * g - (divisor - keep_mean * d) * w;
        d = divisor;
        w = -(z / divisor);
    }
};

// z += g - (sqrt(n + g²) - sqrt(n)) w / rate; n += g²;
// w = 0 where |z| <= threshold, elsewhere (sign(z) threshold - z) / ((beta + sqrt(n)) / rate + decay)
template <class C>
struct Ftrl {
    static constexpr std::size_t kStates = 2;
    C rate, threshold, beta, decay;
    void step(C& w, C g, C& z, C& n) const {
        const C before = root(n);
        n += g * g;
        const C now = root(n);
        z += g - (now - before) * w / rate;
        const C beyond = z > C(0) ? z - threshold : z + threshold;
        w = (magnitude(z) <= threshold ? C(0) : -beyond) / ((now + beta) / rate + decay);
    }
};

// s = keep s + fresh g; w = hold w + along sign(s)
template <class C>
struct Signum {
    static constexpr std::size_t kStates = 1;
    C keep, fresh, hold, along;
    void step(C& w, C g, C& s) const {
        s = keep * s + fresh * g;
        w = hold * w + along * sign(s);
    }
};

// w = hold w + along sign(g)
template <class C>
struct Sign {
    static constexpr std::size_t kStates = 0;
    C hold, along;
    void step(C& w, C g) const { w = hold * w + along * sign(g); }
};

// s = keep s + along (g + correction g² (w - p) + decay w); p = w; w += s
template <class C>
struct DCASGD {
    static constexpr std::size_t kStates = 2;
    C keep, along, correction, decay;
    void step(C& w, C g, C& p, C& s) const {
        s = keep * s + along * (correction * (g * g) * (w - p) + g + decay * w);
        p = w;
        w += s;
    }
};

// The same without s
template <class C>
struct PlainDCASGD {
    static constexpr std::size_t kStates = 1;
    C along, correction, decay;
    void step(C& w, C g, C& p) const {
        const C change = along * (correction * (g * g) * (w - p) + g + decay * w);
        p = w;
        w += change;
    }
};

// m = keep_mean m + fresh_mean g; v = keep_square v + fresh_square g²;
// d = unbias_mean m / (sqrt(unbias v) + epsilon) + decay w; w += along |w| / |d| d, with |w| from `lowest` to
// `highest`, and 1 for the quotient if a norm is 0
template <class C>
struct LAMB {
    static constexpr std::size_t kStates = 2;
    static constexpr Sums kSums = Sums::norms;
    C keep_mean, fresh_mean, keep_square, fresh_square, unbias_mean, unbias, epsilon, decay, along, lowest, highest;
    C direction(C w, C m, C v) const { return unbias_mean * m / (root(unbias * v) + epsilon) + decay * w; }
    void step(C w, C g, C& m, C& v, C& term) const {
        m = keep_mean * m + fresh_mean * g;
        v = keep_square * v + fresh_square * (g * g);
        term = direction(w, m, v);
    }
    void again(C& w, C, C m, C v, C ratio) const { w += along * ratio * direction(w, m, v); }
    // The place of the bounds among the numbers.
    static constexpr std::size_t kLowest = 9;
};

// ---- loops --------------------------------------------------------------------------------------------------

// The gradient of element i, with the decay that is not clipped. Without decay the weight is not used, as 0 times an
// infinite one would be NaN.
template <bool Decays, class C>
inline C gradient_of(C factor, C decay, const C* w, const C* g, std::size_t i) {
    if constexpr (Decays) return factor * g[i] + decay * w[i];
    return factor * g[i];
}

template <class R, class C, bool Decays>
void once(const void* rule, C factor, C decay, C* __restrict w, const C* __restrict g, C* const* states,
          std::size_t n, C*) {
    R r;
    __builtin_memcpy(&r, rule, sizeof r);
    const auto x = [=](std::size_t i) { return gradient_of<Decays>(factor, decay, w, g, i); };
    if constexpr (R::kStates == 0) {
        for (std::size_t i = 0; i < n; ++i) r.step(w[i], x(i));
    } else if constexpr (R::kStates == 1) {
        C* __restrict a = states[0];
        for (std::size_t i = 0; i < n; ++i) r.step(w[i], x(i), a[i]);
    } else if constexpr (R::kStates == 2) {
        C *__restrict a = states[0], *__restrict b = states[1];
        for (std::size_t i = 0; i < n; ++i) r.step(w[i], x(i), a[i], b[i]);
    } else {
        C *__restrict a = states[0], *__restrict b = states[1], *__restrict c = states[2];
        for (std::size_t i = 0; i < n; ++i) r.step(w[i], x(i), a[i], b[i], c[i]);
    }
}

template <class R, class C, bool Decays>
void first(const void* rule, C factor, C decay, C* __restrict w, const C* __restrict g, C* const* states,
           std::size_t n, C* __restrict terms) {
    R r;
    __builtin_memcpy(&r, rule, sizeof r);
    const auto x = [=](std::size_t i) { return gradient_of<Decays>(factor, decay, w, g, i); };
    if constexpr (R::kStates == 1) {
        C* __restrict a = states[0];
        for (std::size_t i = 0; i < n; ++i) r.step(w[i], x(i), a[i], terms[i]);
    } else if constexpr (R::kStates == 2) {
        C *__restrict a = states[0], *__restrict b = states[1];
        for (std::size_t i = 0; i < n; ++i) r.step(w[i], x(i), a[i], b[i], terms[i]);
    } else {
        C *__restrict a = states[0], *__restrict b = states[1], *__restrict c = states[2];
        for (std::size_t i = 0; i < n; ++i) r.step(w[i], x(i), a[i], b[i], c[i], terms[i]);
    }
}

template <class R, class C, bool Decays>
void second(const void* rule, C factor, C decay, C* __restrict w, const C* __restrict g, C* const* states,
            std::size_t n, C coefficient) {
    R r;
    __builtin_memcpy(&r, rule, sizeof r);
    const auto x = [=](std::size_t i) { return gradient_of<Decays>(factor, decay, w, g, i); };
    if constexpr (R::kStates == 1) {
        const C* __restrict a = states[0];
        for (std::size_t i = 0; i < n; ++i) r.again(w[i], x(i), a[i], coefficient);
    } else if constexpr (R::kStates == 2) {
        const C *__restrict a = states[0], *__restrict b = states[1];
        for (std::size_t i = 0; i < n; ++i) r.again(w[i], x(i), a[i], b[i], coefficient);
    } else {
        const C *__restrict a = states[0], *__restrict b = states[1], *__restrict c = states[2];
        for (std::size_t i = 0; i < n; ++i) r.again(w[i], x(i), a[i], b[i], c[i], coefficient);
    }
}

// Writes the clipped gradient.
template <class C>
void prepare(const UpdateStages& stages, C factor, const C* __restrict w, const C* __restrict g, std::size_t n,
             C* __restrict out) {
    const C decay = static_cast<C>(stages.decay_before_clipping), limit = static_cast<C>(stages.limit);
    if (stages.decay_before_clipping != 0) {
        for (std::size_t i = 0; i < n; ++i) out[i] = clamp(factor * g[i] + decay * w[i], limit);
    } else {
        for (std::size_t i = 0; i < n; ++i) out[i] = clamp(factor * g[i], limit);
    }
}

template <class C>
void finish(const UpdateStages& stages, const C* __restrict noise, std::size_t n, C* __restrict w) {
    const C scale = static_cast<C>(stages.noise_factor), shrink = static_cast<C>(stages.shrink);
    const C bound = static_cast<C>(stages.bound);
    if (noise != nullptr)
        for (std::size_t i = 0; i < n; ++i) w[i] += scale * noise[i];
    if (shrink > C(0))
        for (std::size_t i = 0; i < n; ++i) w[i] -= clamp(w[i], shrink);
    if (stages.bound <= __DBL_MAX__)
        for (std::size_t i = 0; i < n; ++i) w[i] = clamp(w[i], bound);
}

// Sums in eight lanes, whatever the instruction set.
template <class C>
double sum(const C* x, std::size_t n) {
    double lanes[8] = {};
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (std::size_t k = 0; k < 8; ++k) lanes[k] += static_cast<double>(x[i + k]);
    for (std::size_t k = 0; i + k < n; ++k) lanes[k] += static_cast<double>(x[i + k]);
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

template <class C>
double sum_squares(const C* x, std::size_t n) {
    double lanes[8] = {};
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (std::size_t k = 0; k < 8; ++k) {
            const double value = static_cast<double>(x[i + k]);
            lanes[k] += value * value;
        }
    }
    for (std::size_t k = 0; i + k < n; ++k) {
        const double value = static_cast<double>(x[i + k]);
        lanes[k] += value * value;
    }
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

template <class R>
constexpr bool goes_twice(decltype(R::kSums)*) { return true; }
template <class R>
constexpr bool goes_twice(...) { return false; }

template <class R, class C>
RuleLoops<C> loops_of(const char* name) {
    if constexpr (goes_twice<R>(nullptr)) {
        return {name, R::kStates, sizeof(R) / sizeof(C), R::kSums, {first<R, C, false>, first<R, C, true>},
                {second<R, C, false>, second<R, C, true>}};
    } else {
        return {name, R::kStates, sizeof(R) / sizeof(C), Sums::none, {once<R, C, false>, once<R, C, true>},
                {nullptr, nullptr}};
    }
}

// All rules, in one order for all types and instruction sets.
template <class C>
UpdateLoops<C> all_loops() {
    return {{loops_of<Step<C>, C>("step"),
             loops_of<Momentum<C>, C>("momentum"),
             loops_of<AdaGrad<C>, C>("adagrad"),
             loops_of<AveragedAdaGrad<C>, C>("averaged_adagrad"),
             loops_of<AdaDelta<C>, C>("adadelta"),
             loops_of<Adam<C>, C>("adam"),
             loops_of<AdaMax<C>, C>("adamax"),
             loops_of<FSAdaGrad<C>, C>("fsadagrad"),
             loops_of<RMSProp<C>, C>("rmsprop"),
             loops_of<AveragedRMSProp<C>, C>("averaged_rmsprop"),
             loops_of<CenteredRMSProp<C>, C>("centered_rmsprop"),
             loops_of<FTML<C>, C>("ftml"),
             loops_of<Ftrl<C>, C>("ftrl"),
             loops_of<Signum<C>, C>("signum"),
             loops_of<Sign<C>, C>("sign"),
             loops_of<DCASGD<C>, C>("dcasgd"),
             loops_of<PlainDCASGD<C>, C>("plain_dcasgd"),
             loops_of<LAMB<C>, C>("lamb")},
            prepare<C>,
            finish<C>,
            sum<C>,
            sum_squares<C>};
}

}  // namespace
}  // namespace feedline
