// Updates of weights by the rules of optimizers. Arrays are given by address, as in merge.cpp, or as tensors.
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

// Fewer elements are done before another thread could use the GIL.
constexpr std::size_t kHoldGil = std::size_t{1} << 13;
// Starting a thread costs as much as updating about this many elements.
constexpr std::size_t kOneThread = std::size_t{1} << 17;

std::size_t size_of(nb::handle count) {
    const auto n = nb::cast<std::int64_t>(count);
    if (n < 0) raise<nb::value_error>({"expected a count of elements >= 0, got ", n});
    return static_cast<std::size_t>(n);
}

FloatArray array_of(nb::handle address, nb::handle type) {
    const auto number = nb::cast<std::int64_t>(type);
    if (number < 0 || number > 3) raise<nb::value_error>({"expected a type from 0 to 3, got ", number});
    return {reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(address)), static_cast<FloatType>(number)};
}

std::size_t threads_for(std::size_t elements, std::int64_t threads) {
    if (threads < 1) raise<nb::value_error>({"expected threads >= 1, got ", threads});
    return elements < kOneThread ? 1 : static_cast<std::size_t>(threads);
}

// Calls `run` for each chunk. Threads take the next one when they are done.
template <class Run>
void run_chunks(std::size_t threads, std::size_t chunks, const Run& run) {
    std::atomic<std::size_t> next{0};
    in_parts(std::min(threads, std::max<std::size_t>(chunks, 1)), [&](std::size_t) {
        for (std::size_t k = next++; k < chunks; k = next++) run(k);
    });
}

// Does `work`, and releases the GIL if that takes long.
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
    const auto has_name = [&](const UpdateRule& rule) { return rule.name == name; };
    const auto rule = std::find_if(rules.begin(), rules.end(), has_name);
    if (rule == rules.end()) raise<nb::value_error>({"expected the name of a rule, got '", name, "'"});
    if (numbers != rule->numbers)
        raise<nb::value_error>({"expected ", rule->numbers, " numbers for '", name, "', got ", numbers});
    return static_cast<std::size_t>(rule - rules.begin());
}

using Range = std::pair<std::uintptr_t, std::uintptr_t>;

void add_range(std::vector<Range>& ranges, const FloatArray& array, std::size_t count) {
    const auto begin = reinterpret_cast<std::uintptr_t>(array.data);
    if (array.data != nullptr && count > 0) ranges.emplace_back(begin, begin + count * float_bytes(array.type));
}

// Whether some updates write to memory that they share. If so, one thread does all of them.
bool share_memory(const std::vector<Update>& updates, std::size_t states) {
    std::vector<Range> ranges;
    for (const Update& update : updates) {
        add_range(ranges, update.weight, update.count);
        add_range(ranges, update.copy, update.count);
        for (std::size_t k = 0; k < states; ++k) add_range(ranges, update.states[k], update.count);
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
    Update update;
    update.count = size_of(fields[0]);
    update.factor = nb::cast<double>(fields[1]);
    const auto array = [&](std::size_t k) { return array_of(fields[2 + 2 * k], fields[3 + 2 * k]); };
    update.weight = array(0);
    update.gradient = array(1);
    update.noise = array(2);
    update.copy = array(3);
    for (std::size_t k = 0; k < states; ++k) update.states[k] = array(4 + k);
    const bool wide = update.weight.type == FloatType::float64;
    for (std::size_t k = 0; k < states; ++k)
        if (update.states[k].type == FloatType::float64 && !wide)
            throw nb::value_error("expected float64 states only for float64 weights, got one for other weights");
    return update;
}

// A rule with its numbers, and the numbers of the stages.
struct RuleCall {
    std::size_t rule, states;
    std::vector<double> numbers;
    UpdateStages stages;

    RuleCall(const std::string& name, nb::sequence rule_numbers, nb::tuple stage_numbers) {
        for (nb::handle number : rule_numbers) numbers.push_back(nb::cast<double>(number));
        rule = rule_of(name, numbers.size());
        states = update_rules()[rule].states;
        if (stage_numbers.size() != 6)
            raise<nb::value_error>({"expected 6 numbers for stages, got ", stage_numbers.size()});
        const auto stage = [&](std::size_t k) { return nb::cast<double>(stage_numbers[k]); };
        stages = UpdateStages{stage(0), stage(1), stage(2), stage(3), stage(4), stage(5)};
    }

    void run(std::vector<Update> updates, std::int64_t threads) const {
        std::size_t elements = 0;
        for (const Update& update : updates) elements += update.count;
        std::size_t workers = threads_for(elements, threads);
        if (workers > 1 && share_memory(updates, states)) workers = 1;
        Updates work(rule, numbers.data(), stages, std::move(updates));
        do_unlocked(elements, [&] {
            run_chunks(workers, work.chunks(), [&](std::size_t k) { work.run(k); });
            if (!work.needs_second_pass()) return;
            work.combine_sums();
            run_chunks(workers, work.chunks(), [&](std::size_t k) { work.run_second_pass(k); });
        });
    }
};

bool is_wide(const Update& update) { return update.weight.type == FloatType::float64; }

void update(const std::string& name, nb::sequence numbers, nb::tuple stages, nb::sequence jobs, std::int64_t threads) {
    const RuleCall call(name, numbers, stages);
    std::vector<Update> updates;
    for (nb::handle job : jobs) {
        updates.push_back(update_of(job, call.states));
        if (is_wide(updates.back()) != is_wide(updates.front()))
            throw nb::value_error("expected either float64 weights or others, got both");
    }
    call.run(std::move(updates), threads);
}

// Sets `out` to the array of a tensor. Returns false if native code does not support it, or if it has another shape or
// layout than `like`.
bool read_array(const Viewer& viewer, nb::handle object, const Tensor& like, FloatArray& out) {
    Tensor tensor;
    if (!viewer.view(object, tensor) || tensor.device.device_type != kCpu || tensor.dtype.lanes != 1) return false;
    const auto bits = tensor.dtype.bits;
    if (tensor.dtype.code == kFloat && (bits == 32 || bits == 64 || bits == 16)) {
        out.type = bits == 32 ? FloatType::float32 : bits == 64 ? FloatType::float64 : FloatType::float16;
    } else if (tensor.dtype.code == kBfloat && bits == 16) {
        out.type = FloatType::bfloat16;
    } else {
        return false;
    }
    out.data = reinterpret_cast<std::byte*>(address_of(tensor));
    return same_shape(tensor, like) && same_layout(tensor, like);
}

// Whether an array that is only read shares memory with the weight.
bool overlaps_weight(const Update& update, const FloatArray& array) {
    const std::byte *weight = update.weight.data, *from = array.data;
    return from < weight + update.count * float_bytes(update.weight.type) &&
           weight < from + update.count * float_bytes(array.type);
}

nb::list update_tensors(nb::tuple types, const std::string& name, nb::sequence numbers, nb::tuple stages,
                        nb::list weights, nb::list gradients, nb::list states, nb::object factors, nb::object noise,
                        nb::object copies, std::int64_t threads) {
    const RuleCall call(name, numbers, stages);
    const Viewer viewer(types[0], types[1]);
    std::vector<Update> updates;
    nb::list unsupported;
    const std::size_t count = weights.size();
    std::vector<nb::list> state_lists;
    for (nb::handle list : states) state_lists.push_back(nb::cast<nb::list>(list));
    const auto as_list = [&](nb::object list) { return list.is_none() ? nb::list() : nb::cast<nb::list>(list); };
    const nb::list scales = as_list(factors), noises = as_list(noise), receivers = as_list(copies);
    bool fit = gradients.size() == count && state_lists.size() == call.states;
    for (const nb::list& list : state_lists) fit = fit && list.size() == count;
    for (const nb::list* list : {&scales, &noises, &receivers})
        fit = fit && (list->size() == 0 || list->size() == count);
    if (!fit) throw nb::value_error("expected lists of one length, and as many of states as the rule has");
    for (std::size_t i = 0; i < count; ++i) {
        Update update;
        Tensor like;
        bool supported = viewer.view(nb::handle(weights[i]), like) && dense(like) &&
                         read_array(viewer, nb::handle(weights[i]), like, update.weight) &&
                         read_array(viewer, nb::handle(gradients[i]), like, update.gradient);
        if (supported) update.count = count_of(like);
        supported = supported && !overlaps_weight(update, update.gradient);
        for (std::size_t k = 0; supported && k < call.states; ++k)
            supported = read_array(viewer, nb::handle(state_lists[k][i]), like, update.states[k]) &&
                        (update.states[k].type != FloatType::float64 || is_wide(update));
        if (supported && noises.size() > 0)
            supported = read_array(viewer, nb::handle(noises[i]), like, update.noise) &&
                        !overlaps_weight(update, update.noise);
        if (supported && receivers.size() > 0)
            supported = read_array(viewer, nb::handle(receivers[i]), like, update.copy);
        if (supported && !updates.empty()) supported = is_wide(update) == is_wide(updates.front());
        if (!supported) {
            unsupported.append(i);
            continue;
        }
        if (scales.size() > 0) update.factor = nb::cast<double>(nb::float_(scales[i]));
        updates.push_back(update);
    }
    call.run(std::move(updates), threads);
    return unsupported;
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
    do_unlocked(elements, [&] { run_chunks(workers, work.chunks(), [&](std::size_t k) { work.run(k); }); });
    nb::list sums;
    for (const double sum : work.sums()) sums.append(sum);
    return sums;
}

nb::dict rules() {
    nb::dict dict;
    for (const UpdateRule& rule : update_rules())
        dict[nb::str(rule.name.data(), rule.name.size())] = nb::make_tuple(rule.states, rule.numbers);
    return dict;
}

}  // namespace

void bind_update(nb::module_& m) {
    m.attr("UPDATE_RULES") = rules();
    m.def("update", &update, "rule"_a, "numbers"_a, "stages"_a, "jobs"_a, "threads"_a = 1,
          "Update weights by a rule of UPDATE_RULES (states and numbers by name), all stages in one pass.\n\n"
          "stages: decay before clipping, limit, decay after clipping, noise factor, shrink, bound. jobs: tuples\n"
          "(count, factor, then an address and a type each for weight, gradient, noise, copy and states), of arrays\n"
          "that the caller has checked and keeps alive and unchanged during the call. An address of 0 is no array.\n"
          "Types: 0 float32, 1 float64, 2 float16, 3 bfloat16. ValueError for other rules, numbers or types.");
    m.def("update_tensors", &update_tensors, "types"_a, "rule"_a, "numbers"_a, "stages"_a, "weights"_a, "gradients"_a,
          "states"_a, "factors"_a.none(), "noise"_a.none(), "copies"_a.none(), "threads"_a = 1,
          "Do what update() does for lists of tensors of exactly these two types, of which the first has DLPack's C\n"
          "functions. `states` has a list for each state, and None is no list.\n\n"
          "Returns the places of weights that are not supported, and not updated: other types, other than float\n"
          "tensors of one shape and dense layout on the CPU, float64 weights among others, gradients that share\n"
          "memory with weights.");
    m.def("square_sums", &square_sums, "jobs"_a, "threads"_a = 1,
          "Return the sum of squares of each array (count, address, type), in double precision.");
}
