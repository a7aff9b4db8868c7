#include <nanobind/nanobind.h>

#include "arrays.h"
#include "merge_batch.h"

namespace nb = nanobind;
using namespace nb::literals;
using feedline::bindings::MergeBatch;
using feedline::bindings::raise;

namespace {

std::size_t size_of(nb::handle count) {
    const auto n = nb::cast<std::int64_t>(count);
    if (n < 0) raise<nb::value_error>({"expected a count of elements >= 0, got ", n});
    return static_cast<std::size_t>(n);
}

template <class T>
void merge_all(nb::sequence jobs, std::size_t threads) {
    MergeBatch<T> batch;
    for (nb::handle job : jobs) {
        const nb::tuple fields = nb::cast<nb::tuple>(job);
        if (fields.size() != 3) raise<nb::value_error>({"expected jobs of 3 fields, got ", fields.size()});
        batch.job(size_of(fields[0]));
        bool none = true;
        for (nb::handle address : nb::cast<nb::sequence>(fields[1])) {
            batch.input(nb::cast<std::uintptr_t>(address));
            none = false;
        }
        for (nb::handle address : nb::cast<nb::sequence>(fields[2])) batch.output(nb::cast<std::uintptr_t>(address));
        if (none) throw nb::value_error("expected at least one input for each job, got none");
    }
    batch.run(threads);
}

void merge_jobs(nb::sequence jobs, std::int64_t item_bytes, std::int64_t threads) {
    if (threads < 1) raise<nb::value_error>({"expected threads >= 1, got ", threads});
    if (item_bytes == 4) {
        merge_all<float>(jobs, static_cast<std::size_t>(threads));
    } else if (item_bytes == 8) {
        merge_all<double>(jobs, static_cast<std::size_t>(threads));
    } else {
        raise<nb::value_error>({"expected floats of 4 or 8 bytes, got ", item_bytes});
    }
}

}  // namespace

void bind_merge(nb::module_& m) {
    m.def("merge", &merge_jobs, "jobs"_a, "item_bytes"_a, "threads"_a = 1,
          "Sum arrays and copy each sum to several arrays, in one pass.\n\n"
          "jobs: tuples (count, inputs, outputs): the number of elements, and addresses of float32 or float64\n"
          "arrays (item_bytes 4 or 8) that are aligned, that the caller has checked, and that it keeps alive\n"
          "and unchanged during the call. The first output is one of the inputs or overlaps none of them. Other\n"
          "outputs may overlap inputs. Above 32 KiB the GIL is released, and above 1 MiB up to `threads` threads\n"
          "share the work.");
}
