#include "feedline/update.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "feedline/codes.h"
#include "feedline/cpu.h"
#include "update_loops.h"
#include "update_rules.h"

namespace feedline {
namespace {

// Elements of a chunk. Sums are sums of the sums of chunks, so results depend on this number.
constexpr std::size_t kChunk = std::size_t{1} << 15;
// Elements that pass through all stages together. They stay in the first-level cache.
template <class C>
constexpr std::size_t kBlock = 4096 / sizeof(C);

template <class C>
const UpdateLoops<C>& update_loops() {
#ifdef FEEDLINE_X86
    if (cpu().avx2) return update_loops_avx2<C>();
#endif
    static const UpdateLoops<C> portable = all_loops<C>();
    return portable;
}

template <class C>
constexpr FloatType kTypeOf = sizeof(C) == 8 ? FloatType::float64 : FloatType::float32;

std::byte* at(const FloatArray& array, std::size_t begin) { return array.data + begin * float_bytes(array.type); }

Code code_of(FloatType type) { return type == FloatType::float16 ? Code::float16 : Code::bfloat16; }

template <class From, class To>
void convert(const std::byte* from, std::size_t n, To* to) {
    const From* values = reinterpret_cast<const From*>(from);
    for (std::size_t i = 0; i < n; ++i) to[i] = static_cast<To>(values[i]);
}

// The elements as C: in place, or converted into `buffer`.
template <class C>
C* load(const FloatArray& array, std::size_t begin, std::size_t n, C* buffer) {
    std::byte* from = at(array, begin);
    if (array.type == kTypeOf<C>) return reinterpret_cast<C*>(from);
    if (array.type == FloatType::float32) {
        convert<float>(from, n, buffer);
    } else if (array.type == FloatType::float64) {
        convert<double>(from, n, buffer);
    } else {
        const auto* code = reinterpret_cast<const std::uint8_t*>(from);
        if constexpr (sizeof(C) == 4) {
            decode_sum(code_of(array.type), 0, &code, 1, n, buffer);
        } else {
            float values[kBlock<C>];
            decode_sum(code_of(array.type), 0, &code, 1, n, values);
            convert<float>(reinterpret_cast<const std::byte*>(values), n, buffer);
        }
    }
    return buffer;
}

template <class C>
void store(const FloatArray& array, std::size_t begin, std::size_t n, const C* values) {
    std::byte* to = at(array, begin);
    if (reinterpret_cast<const std::byte*>(values) == to) return;
    if (array.type == kTypeOf<C>) {
        std::memcpy(to, values, n * sizeof(C));
    } else if (array.type == FloatType::float32) {
        convert<C>(reinterpret_cast<const std::byte*>(values), n, reinterpret_cast<float*>(to));
    } else if (array.type == FloatType::float64) {
        convert<C>(reinterpret_cast<const std::byte*>(values), n, reinterpret_cast<double*>(to));
    } else {
        auto* code = reinterpret_cast<std::uint8_t*>(to);
        if constexpr (sizeof(C) == 4) {
            encode(code_of(array.type), 0, values, nullptr, n, nullptr, code);
        } else {
            float narrow[kBlock<C>];
            convert<C>(reinterpret_cast<const std::byte*>(values), n, narrow);
            encode(code_of(array.type), 0, narrow, nullptr, n, nullptr, code);
        }
    }
}

template <class Each>
void cut(std::size_t count, const Each& each) {
    for (std::size_t begin = 0; begin < count; begin += kChunk) each(begin, std::min(count, begin + kChunk));
}

}  // namespace

const std::vector<UpdateRule>& update_rules() {
    static const std::vector<UpdateRule> rules = [] {
        std::vector<UpdateRule> list;
        for (const RuleLoops<float>& rule : update_loops<float>().rules)
            list.push_back({rule.name, rule.states, rule.numbers, rule.again[0] != nullptr});
        return list;
    }();
    return rules;
}

Updates::Updates(std::size_t rule, const double* numbers, const UpdateStages& stages, std::vector<Update> updates)
    : rule_(rule), numbers_(numbers, numbers + update_rules()[rule].numbers), stages_(stages),
      updates_(std::move(updates)), wide_(false), needs_second_pass_(false) {
    for (std::size_t k = 0; k < updates_.size(); ++k) {
        wide_ = wide_ || updates_[k].weight.type == FloatType::float64;
        cut(updates_[k].count, [&](std::size_t begin, std::size_t end) { chunks_.push_back({k, begin, end, {0, 0}}); });
        // A weight of one chunk gets both passes at once, while it is in a cache.
        needs_second_pass_ = needs_second_pass_ || (update_rules()[rule].two_passes && updates_[k].count > kChunk);
    }
    coefficients_.resize(updates_.size());
}

void Updates::run(std::size_t chunk) {
    Chunk& part = chunks_[chunk];
    const auto pass_over = [&](bool second, double coefficient) {
        if (wide_) {
            pass<double>(part, second, coefficient, part.sums);
        } else {
            pass<float>(part, second, coefficient, part.sums);
        }
    };
    pass_over(false, 0);
    if (update_rules()[rule_].two_passes && part.end - part.begin == updates_[part.update].count)
        pass_over(true, coefficient(chunk, chunk + 1));
}

void Updates::combine_sums() {
    for (std::size_t first = 0, last = 0; first < chunks_.size(); first = last) {
        const std::size_t update = chunks_[first].update;
        while (last < chunks_.size() && chunks_[last].update == update) ++last;
        coefficients_[update] = coefficient(first, last);
    }
}

void Updates::run_second_pass(std::size_t chunk) {
    const Chunk& part = chunks_[chunk];
    if (part.end - part.begin == updates_[part.update].count) return;
    if (wide_) {
        pass<double>(part, true, coefficients_[part.update], nullptr);
    } else {
        pass<float>(part, true, coefficients_[part.update], nullptr);
    }
}

double Updates::coefficient(std::size_t first, std::size_t last) const {
    double sums[2] = {0, 0};
    for (std::size_t k = first; k < last; ++k) {
        sums[0] += chunks_[k].sums[0];
        sums[1] += chunks_[k].sums[1];
    }
    if (update_loops<float>().rules[rule_].sums == Sums::mean)
        return static_cast<double>(updates_[chunks_[first].update].count) / sums[0];
    const double lowest = numbers_[LAMB<double>::kLowest], highest = numbers_[LAMB<double>::kLowest + 1];
    double length = std::sqrt(sums[0]);
    length = length < lowest ? lowest : length > highest ? highest : length;
    const double of_terms = std::sqrt(sums[1]);
    return length != 0 && of_terms != 0 ? length / of_terms : 1.0;
}

template <class C>
void Updates::pass(const Chunk& chunk, bool second, double coefficient, double* sums) {
    constexpr std::size_t kNumbers = 16;
    alignas(64) C numbers[kNumbers], w_buffer[kBlock<C>], g_buffer[kBlock<C>], ready[kBlock<C>], terms[kBlock<C>];
    alignas(64) C s_buffers[kMaxStates][kBlock<C>];
    const UpdateLoops<C>& loops = update_loops<C>();
    const RuleLoops<C>& rule = loops.rules[rule_];
    const Update& update = updates_[chunk.update];
    for (std::size_t k = 0; k < numbers_.size(); ++k) numbers[k] = static_cast<C>(numbers_[k]);
    // Without a limit, the decay before clipping can be added after it, where it costs no stage.
    const bool clips = stages_.limit <= __DBL_MAX__, writes = second || rule.sums == Sums::none;
    const double unclipped = clips ? stages_.decay_after_clipping
                                   : stages_.decay_before_clipping + stages_.decay_after_clipping;
    const C decay = static_cast<C>(unclipped);
    const bool decays = unclipped != 0;
    // Arrays without buffers and stages are done at once.
    const auto direct = [](const FloatArray& array) { return array.type == kTypeOf<C>; };
    bool at_once = !clips && rule.sums == Sums::none && direct(update.weight) && direct(update.gradient) &&
                   update.noise.data == nullptr && update.copy.data == nullptr && !(stages_.shrink > 0) &&
                   !(stages_.bound <= __DBL_MAX__);
    for (std::size_t k = 0; k < rule.states; ++k) at_once = at_once && direct(update.states[k]);
    for (std::size_t begin = chunk.begin, n = 0; begin < chunk.end; begin += n) {
        n = at_once ? chunk.end - begin : std::min(kBlock<C>, chunk.end - begin);
        C* w = load(update.weight, begin, n, w_buffer);
        const C* g = load(update.gradient, begin, n, g_buffer);
        C* states[kMaxStates];
        for (std::size_t k = 0; k < rule.states; ++k) states[k] = load(update.states[k], begin, n, s_buffers[k]);
        C factor = static_cast<C>(update.factor);
        if (clips) {
            loops.prepare(stages_, factor, w, g, n, ready);
            g = ready;
            factor = 1;
        }
        if (second) {
            rule.again[decays](numbers, factor, decay, w, g, states, n, static_cast<C>(coefficient));
        } else {
            rule.run[decays](numbers, factor, decay, w, g, states, n, terms);
            for (std::size_t k = 0; k < rule.states; ++k) store(update.states[k], begin, n, states[k]);
            if (rule.sums == Sums::mean) sums[0] += loops.sum(terms, n);
            if (rule.sums == Sums::norms) {
                sums[0] += loops.sum_squares(w, n);
                sums[1] += loops.sum_squares(terms, n);
            }
        }
        if (!writes) continue;
        const C* noise = update.noise.data == nullptr ? nullptr : load(update.noise, begin, n, terms);
        loops.finish(stages_, noise, n, w);
        store(update.weight, begin, n, w);
        if (update.copy.data != nullptr) store(update.copy, begin, n, w);
    }
}

SquareSums::SquareSums(std::vector<FloatArray> arrays, const std::vector<std::size_t>& counts)
    : arrays_(std::move(arrays)) {
    for (std::size_t k = 0; k < arrays_.size(); ++k)
        cut(counts[k], [&](std::size_t begin, std::size_t end) { chunks_.push_back({k, begin, end, 0}); });
}

void SquareSums::run(std::size_t chunk) {
    Chunk& part = chunks_[chunk];
    const FloatArray& array = arrays_[part.array];
    double doubles[kBlock<double>];
    float floats[kBlock<float>];
    const bool wide = array.type == FloatType::float64;
    const std::size_t block = wide ? kBlock<double> : kBlock<float>;
    for (std::size_t begin = part.begin, n = 0; begin < part.end; begin += n) {
        n = std::min(block, part.end - begin);
        part.sum += wide ? update_loops<double>().sum_squares(load(array, begin, n, doubles), n)
                         : update_loops<float>().sum_squares(load(array, begin, n, floats), n);
    }
}

std::vector<double> SquareSums::sums() const {
    std::vector<double> sums(arrays_.size());
    for (const Chunk& chunk : chunks_) sums[chunk.array] += chunk.sum;
    return sums;
}

}  // namespace feedline
