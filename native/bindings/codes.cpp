// Many arrays encoded, or decoded and summed, in one call. Arrays are given by address, as in merge.cpp.
#include "feedline/codes.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <vector>

#include "arrays.h"
#include "feedline/threads.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace feedline;
using feedline::bindings::raise;
using feedline::bindings::Unlocked;

namespace {

// Fewer values are done before another thread could use the GIL.
constexpr std::size_t kHoldGil = 1u << 13;
// Starting a thread costs as much as coding about this many values.
constexpr std::size_t kOneThread = 1u << 18;

Code code_of(const std::string& name, float threshold) {
    if (name == "2bit") {
        if (!(threshold > 0))
            raise<nb::value_error>({"expected a threshold above 0 for 2 bits, got ", std::to_string(threshold)});
        return Code::two_bits;
    }
    if (name == "1bit") return Code::one_bit;
    if (name == "bf16") return Code::bfloat16;
    if (name == "fp16") return Code::float16;
    raise<nb::value_error>({"expected '2bit', '1bit', 'bf16' or 'fp16', got '", name, "'"});
}

std::size_t size_of(nb::handle count) {
    const auto n = nb::cast<std::int64_t>(count);
    if (n < 0) raise<nb::value_error>({"expected a count of elements >= 0, got ", n});
    return static_cast<std::size_t>(n);
}

template <class T>
T* pointer(nb::handle address) {
    return reinterpret_cast<T*>(nb::cast<std::uintptr_t>(address));
}

// Calls `work(job, begin, end)` for parts of all jobs, on several threads if that pays.
template <class Job, class Work>
void run(const std::vector<Job>& jobs, std::int64_t threads, const Work& work) {
    if (threads < 1) raise<nb::value_error>({"expected threads >= 1, got ", threads});
    std::size_t total = 0;
    for (const Job& job : jobs) total += job.count;
    const std::size_t count = total < kOneThread ? 1 : static_cast<std::size_t>(threads);
    const auto part = [&](std::size_t k) {
        const std::size_t begin = total * k / count, end = total * (k + 1) / count;
        std::size_t start = 0;
        for (const Job& job : jobs) {
            const std::size_t stop = start + job.count;
            if (stop > begin && start < end) {
                // A job can only be cut at multiples of kCodeStep, so both neighbours round up in the same way.
                const auto cut = [&](std::size_t at) {
                    return at >= stop ? job.count : std::min(job.count, (at - start + kCodeStep - 1) / kCodeStep * kCodeStep);
                };
                const std::size_t from = begin <= start ? 0 : cut(begin), to = cut(end);
                if (from < to) work(job, from, to);
            }
            start = stop;
        }
    };
    if (total < kHoldGil) {
        part(0);
    } else {
        const Unlocked unlocked;
        in_parts(count, part);
    }
}

struct EncodeJob {
    std::size_t count;
    const float *value, *residual;
    float* left;
    std::uint8_t* codes;
};

void encode_all(const std::string& name, float threshold, nb::sequence jobs, std::int64_t threads) {
    const Code code = code_of(name, threshold);
    std::vector<EncodeJob> encode_jobs;
    for (nb::handle job : jobs) {
        const nb::tuple fields = nb::cast<nb::tuple>(job);
        if (fields.size() != 5) raise<nb::value_error>({"expected jobs of 5 fields, got ", fields.size()});
        encode_jobs.push_back({size_of(fields[0]), pointer<const float>(fields[1]), pointer<const float>(fields[2]),
                               pointer<float>(fields[3]), pointer<std::uint8_t>(fields[4])});
    }
    run(encode_jobs, threads, [&](const EncodeJob& job, std::size_t begin, std::size_t end) {
        const bool has_residual = code == Code::two_bits || code == Code::one_bit;
        encode(code, threshold, job.value + begin, has_residual ? job.residual + begin : nullptr, end - begin,
               has_residual ? job.left + begin : nullptr, job.codes + code_bytes(code, begin));
    });
}

struct SumJob {
    std::size_t count;
    std::vector<const std::uint8_t*> codes;
    float* out;
};

void decode_sums(const std::string& name, float threshold, nb::sequence jobs, std::int64_t threads) {
    const Code code = code_of(name, threshold);
    std::vector<SumJob> sum_jobs;
    for (nb::handle job : jobs) {
        const nb::tuple fields = nb::cast<nb::tuple>(job);
        if (fields.size() != 3) raise<nb::value_error>({"expected jobs of 3 fields, got ", fields.size()});
        SumJob sum{size_of(fields[0]), {}, pointer<float>(fields[2])};
        for (nb::handle address : nb::cast<nb::sequence>(fields[1]))
            sum.codes.push_back(pointer<const std::uint8_t>(address));
        if (sum.codes.empty()) throw nb::value_error("expected at least one array of codes for each job, got none");
        sum_jobs.push_back(std::move(sum));
    }
    run(sum_jobs, threads, [&](const SumJob& job, std::size_t begin, std::size_t end) {
        std::vector<const std::uint8_t*> from(job.codes);
        for (const std::uint8_t*& codes : from) codes += code_bytes(code, begin);
        decode_sum(code, threshold, from.data(), from.size(), end - begin, job.out + begin);
    });
}

}  // namespace

void bind_codes(nb::module_& m) {
    m.def("encode", &encode_all, "code"_a, "threshold"_a, "jobs"_a, "threads"_a = 1,
          "Encode float32 arrays as '2bit', '1bit', 'bf16' or 'fp16'.\n\n"
          "jobs: tuples (count, value, residual, left, codes): the number of elements, and the addresses of\n"
          "arrays that the caller has checked and keeps alive and unchanged during the call. `left` receives\n"
          "the new residual, and may be the same array as `residual`. Neither is accessed for 'bf16' and 'fp16'.");
    m.def("decode_sums", &decode_sums, "code"_a, "threshold"_a, "jobs"_a, "threads"_a = 1,
          "Decode several arrays of codes and sum them, in one pass, from the first to the last.\n\n"
          "jobs: tuples (count, codes, out): the number of elements, a list of addresses of codes, and the\n"
          "address of the float32 array for the sum.");
}
