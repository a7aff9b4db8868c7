// Updates of weights by the rules of optimizers: by address, as those of merge.cpp.
#include "feedline/update.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "arrays.h"
#include "tensor_view.h"
#include "feedline/threads.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace feedline;
using namespace feedline::bindings;

namespace {

// Less is done before another thread could use the GIL.
constexpr std::size_t kHoldGil = std::size_t{1} << 13;
// Starting a thread costs about what updating so many elements does.
constexpr std::size_t kOneThread = std::size_t{1} << 17;

std::size_t size_of(nb::handle count) {
    const auto n = nb::cast<std::int64_t>(count);
    if (n < 0) raise<nb::value_error>({"expected a count of elements >= 0, got ", n});
    return static_cast<std::size_t>(n);
}

FloatArray array_of(nb::handle address, nb::handle type) {
    const auto found = nb::cast<std::int64_t>(type);
    if (found < 0 || found > 3) raise<nb::value_error>({"expected a type from 0 to 3, got ", found});
    return {reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(address)), static_cast<FloatType>(found)};
}

std::size_t threads_for(std::size_t elements, std::int64_t threads) {
    if (threads < 1) raise<nb::value_error>({"expected threads >= 1, got ", threads});
    return elements < kOneThread ? 1 : static_cast<std::size_t>(threads);
}

// Calls `run` for each chunk; threads take the next one when they are done.
template <class Run>
void share(std::size_t threads, std::size_t chunks, const Run& run) {
    std::atomic<std::size_t> next{0};
    in_parts(std::min(threads, std::max<std::size_t>(chunks, 1)), [&](std::size_t) {
        for (std::size_t k = next++; k < chunks; k = next++) run(k);
    });
}

// Does `work`, without the GIL if that takes long.
template <class Work>
void do_unlocked(std::size_t elements, const Work& work) {
    if (elements < kHoldGil) {
        work();
    } else {
        const Unlocked unlocked;
        work();
    }
}

std::size_t rule_of(const std::string& name, std::size_t numbers) {
    const std::vector<UpdateRule>& rules = update_rules();
    const auto named = [&](const UpdateRule& one) { return one.name == name; };
    const auto found = std::find_if(rules.begin(), rules.end(), named);
    if (found == rules.end()) raise<nb::value_error>({"expected the name of a rule, got '", name, "'"});
    if (numbers != found->numbers)
        raise<nb::value_error>({"expected ", found->numbers, " numbers for '", name, "', got ", numbers});
    return static_cast<std::size_t>(found - rules.begin());
}

using Range = std::pair<std::uintptr_t, std::uintptr_t>;

void add_range(std::vector<Range>& ranges, const FloatArray& array, std::size_t count) {
    const auto begin = reinterpret_cast<std::uintptr_t>(array.data);
    if (array.data != nullptr && count > 0) ranges.emplace_back(begin, begin + count * float_bytes(array.type));
}

// Whether arrays of several updates that are written share memory: then they are done one after the other.
bool share_memory(const std::vector<Update>& updates, std::size_t states) {
    std::vector<Range> ranges;
    for (const Update& one : updates) {
        add_range(ranges, one.weight, one.count);
        add_range(ranges, one.copy, one.count);
        for (std::size_t k = 0; k < states; ++k) add_range(ranges, one.states[k], one.count);
    }
    std::sort(ranges.begin(), ranges.end());
    for (std::size_t k = 1; k < ranges.size(); ++k)
        if (ranges[k].first < ranges[k - 1].second) return true;
    return false;
}

Update update_of(nb::handle job, std::size_t states) {
    const nb::tuple fields = nb::cast<nb::tuple>(job);
    const std::size_t arrays = 2 * (states + 4);
    if (fields.size() != 2 + arrays)
        raise<nb::value_error>({"expected jobs of ", 2 + arrays, " fields, got ", fields.size()});
    Update one;
    one.count = size_of(fields[0]);
    one.factor = nb::cast<double>(fields[1]);
    const auto array = [&](std::size_t k) { return array_of(fields[2 + 2 * k], fields[3 + 2 * k]); };
    one.weight = array(0);
    one.gradient = array(1);
    one.noise = array(2);
    one.copy = array(3);
    for (std::size_t k = 0; k < states; ++k) one.states[k] = array(4 + k);
    const bool wide = one.weight.type == FloatType::float64;
    for (std::size_t k = 0; k < states; ++k)
        if (one.states[k].type == FloatType::float64 && !wide)
            throw nb::value_error("expected states that are no wider than the arithmetic, got float64");
    return one;
}

// A rule with its numbers and those of the stages.
struct Chosen {
    std::size_t rule, states;
    std::vector<double> numbers;
    UpdateStages stages;

    Chosen(const std::string& name, nb::sequence given, nb::tuple around) {
        for (nb::handle one : given) numbers.push_back(nb::cast<double>(one));
        rule = rule_of(name, numbers.size());
        states = update_rules()[rule].states;
        if (around.size() != 6) raise<nb::value_error>({"expected 6 numbers for stages, got ", around.size()});
        const auto stage = [&](std::size_t k) { return nb::cast<double>(around[k]); };
        stages = UpdateStages{stage(0), stage(1), stage(2), stage(3), stage(4), stage(5)};
    }

    void run(std::vector<Update> updates, std::int64_t threads) const {
        std::size_t elements = 0;
        for (const Update& one : updates) elements += one.count;
        std::size_t workers = threads_for(elements, threads);
        if (workers > 1 && share_memory(updates, states)) workers = 1;
        Updates work(rule, numbers.data(), stages, std::move(updates));
        do_unlocked(elements, [&] {
            share(workers, work.chunks(), [&](std::size_t k) { work.run(k); });
            if (!work.again()) return;
            work.settle();
            share(workers, work.chunks(), [&](std::size_t k) { work.run_again(k); });
        });
    }
};

bool is_wide(const Update& one) { return one.weight.type == FloatType::float64; }

void update(const std::string& name, nb::sequence numbers, nb::tuple stages, nb::sequence jobs, std::int64_t threads) {
    const Chosen chosen(name, numbers, stages);
    std::vector<Update> updates;
    for (nb::handle job : jobs) {
        updates.push_back(update_of(job, chosen.states));
        if (is_wide(updates.back()) != is_wide(updates.front()))
            throw nb::value_error("expected float64 weights alone, got others with them");
    }
    chosen.run(std::move(updates), threads);
}

// Looks at an array of an update. False: it is none for native code, or of another shape or layout than `like`.
bool see(const Viewer& viewer, nb::handle tensor, const Tensor& like, FloatArray& out) {
    Tensor seen;
    if (!viewer.look(tensor, seen) || seen.device.device_type != kCpu || seen.dtype.lanes != 1) return false;
    if (seen.dtype.code == kFloat && (seen.dtype.bits == 32 || seen.dtype.bits == 64 || seen.dtype.bits == 16)) {
        out.type = seen.dtype.bits == 32   ? FloatType::float32
                   : seen.dtype.bits == 64 ? FloatType::float64
                                           : FloatType::float16;
    } else if (seen.dtype.code == kBfloat && seen.dtype.bits == 16) {
        out.type = FloatType::bfloat16;
    } else {
        return false;
    }
    out.data = reinterpret_cast<std::byte*>(address_of(seen));
    return same_shape(seen, like) && same_layout(seen, like);
}

// Whether what is only read shares memory with the weight.
bool overlaps_weight(const Update& one, const FloatArray& read) {
    const std::byte *begin = one.weight.data, *from = read.data;
    return from < begin + one.count * float_bytes(one.weight.type) && begin < from + one.count * float_bytes(read.type);
}

nb::list update_tensors(nb::tuple types, const std::string& name, nb::sequence numbers, nb::tuple stages,
                        nb::list weights, nb::list gradients, nb::list states, nb::object factors, nb::object noise,
                        nb::object copies, std::int64_t threads) {
    const Chosen chosen(name, numbers, stages);
    const Viewer viewer(types[0], types[1]);
    std::vector<Update> updates;
    nb::list left;
    const std::size_t count = weights.size();
    std::vector<nb::list> kept;
    for (nb::handle one : states) kept.push_back(nb::cast<nb::list>(one));
    const auto listed = [&](nb::object given) { return given.is_none() ? nb::list() : nb::cast<nb::list>(given); };
    const nb::list scales = listed(factors), noises = listed(noise), receivers = listed(copies);
    bool fit = gradients.size() == count && kept.size() == chosen.states;
    for (const nb::list& one : kept) fit = fit && one.size() == count;
    for (const nb::list* one : {&scales, &noises, &receivers}) fit = fit && (one->size() == 0 || one->size() == count);
    if (!fit) throw nb::value_error("expected lists of one length, and as many of states as the rule has");
    for (std::size_t i = 0; i < count; ++i) {
        Update one;
        Tensor like;
        bool ours = viewer.look(nb::handle(weights[i]), like) && dense(like) &&
                    see(viewer, nb::handle(weights[i]), like, one.weight) &&
                    see(viewer, nb::handle(gradients[i]), like, one.gradient);
        if (ours) one.count = count_of(like);
        ours = ours && !overlaps_weight(one, one.gradient);
        for (std::size_t k = 0; ours && k < chosen.states; ++k)
            ours = see(viewer, nb::handle(kept[k][i]), like, one.states[k]) &&
                   (one.states[k].type != FloatType::float64 || is_wide(one));
        if (ours && noises.size() > 0)
            ours = see(viewer, nb::handle(noises[i]), like, one.noise) && !overlaps_weight(one, one.noise);
        if (ours && receivers.size() > 0) ours = see(viewer, nb::handle(receivers[i]), like, one.copy);
        if (ours && !updates.empty()) ours = is_wide(one) == is_wide(updates.front());
        if (!ours) {
            left.append(i);
            continue;
        }
        if (scales.size() > 0) one.factor = nb::cast<double>(nb::float_(scales[i]));
        updates.push_back(one);
    }
    chosen.run(std::move(updates), threads);
    return left;
}

nb::list square_sums(nb::sequence jobs, std::int64_t threads) {
    std::vector<FloatArray> arrays;
    std::vector<std::size_t> counts;
    std::size_t elements = 0;
    for (nb::handle job : jobs) {
        const nb::tuple fields = nb::cast<nb::tuple>(job);
        if (fields.size() != 3) raise<nb::value_error>({"expected jobs of 3 fields, got ", fields.size()});
        counts.push_back(size_of(fields[0]));
        arrays.push_back(array_of(fields[1], fields[2]));
        elements += counts.back();
    }
    const std::size_t workers = threads_for(elements, threads);
    SquareSums work(std::move(arrays), counts);
    do_unlocked(elements, [&] { share(workers, work.chunks(), [&](std::size_t k) { work.run(k); }); });
    nb::list found;
    for (const double one : work.sums()) found.append(one);
    return found;
}

nb::dict rules() {
    nb::dict found;
    for (const UpdateRule& one : update_rules())
        found[nb::str(one.name.data(), one.name.size())] = nb::make_tuple(one.states, one.numbers);
    return found;
}

}  // namespace

void bind_update(nb::module_& m) {
    m.attr("UPDATE_RULES") = rules();
    m.def("update", &update, "rule"_a, "numbers"_a, "stages"_a, "jobs"_a, "threads"_a = 1,
          "Update weights by a rule of UPDATE_RULES (states and numbers by name), all stages in one pass.\n\n"
          "stages: inner, limit, outer, noise_factor, shrink, bound. jobs: tuples (count, factor, then an address\n"
          "and a type each for weight, gradient, noise, copy and states): arrays that the caller has checked and\n"
          "keeps alive and unchanged during the call; an address of 0 is no array. Types: 0 float32, 1 float64,\n"
          "2 float16, 3 bfloat16.");
    m.def("update_tensors", &update_tensors, "types"_a, "rule"_a, "numbers"_a, "stages"_a, "weights"_a, "gradients"_a,
          "states"_a, "factors"_a.none(), "noise"_a.none(), "copies"_a.none(), "threads"_a = 1,
          "Do what update() does for lists of tensors of exactly these two types, of which the first has DLPack's C\n"
          "functions; `states` has a list for each state, and None is no list.\n\n"
          "Returns the places of weights that it cannot do: other types, other than float tensors of one shape and\n"
          "dense layout on the CPU, float64 weights beside others, gradients that share memory with weights.");
    m.def("square_sums", &square_sums, "jobs"_a, "threads"_a = 1,
          "Return the sum of squares of each array (count, address, type), in double precision.");
}
