// Updates of weights by the rules of optimizers: by address, as those of merge.cpp.
#include "feedline/update.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "arrays.h"
#include "threads.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace feedline;
using feedline::bindings::in_parts;
using feedline::bindings::number;
using feedline::bindings::raise;
using feedline::bindings::Unlocked;

namespace {

// Less is done before another thread could use the GIL.
constexpr std::size_t kHoldGil = std::size_t{1} << 13;
// Starting a thread costs about what updating so many elements does.
constexpr std::size_t kOneThread = std::size_t{1} << 17;

std::size_t size_of(nb::handle count) {
    const auto n = nb::cast<std::int64_t>(count);
    if (n < 0) raise<nb::value_error>("expected a count of elements >= 0, got " + number(n));
    return static_cast<std::size_t>(n);
}

FloatArray array_of(nb::handle address, nb::handle type) {
    const auto found = nb::cast<std::int64_t>(type);
    if (found < 0 || found > 3) raise<nb::value_error>("expected a type from 0 to 3, got " + number(found));
    return {reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(address)), static_cast<FloatType>(found)};
}

std::size_t threads_for(std::size_t elements, std::int64_t threads) {
    if (threads < 1) raise<nb::value_error>("expected threads >= 1, got " + number(threads));
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
    if (found == rules.end()) raise<nb::value_error>("expected the name of a rule, got '" + name + "'");
    if (numbers != found->numbers)
        raise<nb::value_error>("expected " + number(found->numbers) + " numbers for '" + name + "', got " +
                               number(numbers));
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
        raise<nb::value_error>("expected jobs of " + number(2 + arrays) + " fields, got " + number(fields.size()));
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

void update(const std::string& name, nb::sequence numbers, nb::tuple stages, nb::sequence jobs, std::int64_t threads) {
    std::vector<double> values;
    for (nb::handle one : numbers) values.push_back(nb::cast<double>(one));
    const std::size_t rule = rule_of(name, values.size()), states = update_rules()[rule].states;
    if (stages.size() != 6) raise<nb::value_error>("expected 6 numbers for stages, got " + number(stages.size()));
    const auto stage = [&](std::size_t k) { return nb::cast<double>(stages[k]); };
    const UpdateStages chosen{stage(0), stage(1), stage(2), stage(3), stage(4), stage(5)};
    std::vector<Update> updates;
    std::size_t elements = 0;
    for (nb::handle job : jobs) {
        updates.push_back(update_of(job, states));
        elements += updates.back().count;
        const bool wide = updates.back().weight.type == FloatType::float64;
        if (wide != (updates.front().weight.type == FloatType::float64))
            throw nb::value_error("expected float64 weights alone, got others with them");
    }
    std::size_t workers = threads_for(elements, threads);
    if (workers > 1 && share_memory(updates, states)) workers = 1;
    Updates work(rule, values.data(), chosen, std::move(updates));
    do_unlocked(elements, [&] {
        share(workers, work.chunks(), [&](std::size_t k) { work.run(k); });
        if (!work.again()) return;
        work.settle();
        share(workers, work.chunks(), [&](std::size_t k) { work.run_again(k); });
    });
}

nb::list square_sums(nb::sequence jobs, std::int64_t threads) {
    std::vector<FloatArray> arrays;
    std::vector<std::size_t> counts;
    std::size_t elements = 0;
    for (nb::handle job : jobs) {
        const nb::tuple fields = nb::cast<nb::tuple>(job);
        if (fields.size() != 3) raise<nb::value_error>("expected jobs of 3 fields, got " + number(fields.size()));
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
    m.def("square_sums", &square_sums, "jobs"_a, "threads"_a = 1,
          "Return the sum of squares of each array (count, address, type), in double precision.");
}
