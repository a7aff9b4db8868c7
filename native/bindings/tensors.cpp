// Merges of tensors, through views from DLPack's C functions.
#include <nanobind/nanobind.h>

#include "arrays.h"
#include "merge_batch.h"
#include "tensor_view.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace feedline::bindings;

namespace {

bool mergeable(const Tensor& tensor) {
    return tensor.device.device_type == kCpu && tensor.dtype.code == kFloat && tensor.dtype.lanes == 1 &&
           (tensor.dtype.bits == 32 || tensor.dtype.bits == 64) && contiguous(tensor);
}

// Adds a job to the batch of its dtype. Returns false if the kernel does not support it, and leaves the batch
// unchanged.
template <class T>
bool add(MergeBatch<T>& batch, const Viewer& viewer, const Tensor& first, nb::handle inputs, nb::handle outputs) {
    const std::size_t count = count_of(first);
    batch.job(count);
    bool output = false;
    for (nb::handle tensors : {inputs, outputs}) {
        for (nb::handle object : tensors) {
            Tensor tensor;
            if (!viewer.view(object, tensor) || !mergeable(tensor) || !same_dtype(tensor, first) ||
                count_of(tensor) != count) {
                batch.drop();
                return false;
            }
            output ? batch.output(address_of(tensor)) : batch.input(address_of(tensor));
        }
        output = true;
    }
    return true;
}

nb::list merge_tensors(nb::handle type, nb::sequence jobs, std::int64_t threads) {
    if (threads < 1) raise<nb::value_error>({"expected threads >= 1, got ", threads});
    const Viewer viewer(type);
    MergeBatch<float> floats;
    MergeBatch<double> doubles;
    nb::list unsupported;
    for (nb::handle job : jobs) {
        const nb::handle inputs = nb::cast<nb::tuple>(job)[0], outputs = nb::cast<nb::tuple>(job)[1];
        Tensor first;
        if (nb::len(inputs) == 0) throw nb::value_error("expected at least one input for each job, got none");
        const bool supported = viewer.view(nb::object(inputs[0]), first) && mergeable(first) &&
                               (first.dtype.bits == 32 ? add(floats, viewer, first, inputs, outputs)
                                                       : add(doubles, viewer, first, inputs, outputs));
        if (!supported) unsupported.append(job);
    }
    floats.run(static_cast<std::size_t>(threads));
    doubles.run(static_cast<std::size_t>(threads));
    return unsupported;
}

bool all_like(nb::handle type, nb::sequence groups, bool dtypes) {
    const Viewer viewer(type);
    for (nb::handle group : groups) {
        const nb::tuple pair = nb::cast<nb::tuple>(group);
        Tensor like;
        if (!viewer.view(pair[0], like)) return false;
        for (nb::handle object : pair[1]) {
            Tensor tensor;
            if (!viewer.view(object, tensor) || !same_shape(tensor, like) || !contiguous(tensor) ||
                (dtypes && !same_dtype(tensor, like)))
                return false;
        }
    }
    return true;
}

}  // namespace

void bind_tensors(nb::module_& m) {
    m.def("merge_tensors", &merge_tensors, "type"_a, "jobs"_a, "threads"_a = 1,
          "Do what merge() does for jobs (inputs, outputs) of tensors of exactly that type, which has DLPack's\n"
          "C functions.\n\n"
          "Returns the jobs that are not supported, and not done: tensors of other types, of differing sizes, or\n"
          "other than contiguous float32 or float64 tensors of one dtype on the CPU.");
    m.def("all_like", &all_like, "type"_a, "groups"_a, "dtypes"_a,
          "Return whether all tensors of each group (like, tensors) are contiguous, of exactly that type, of\n"
          "the shape of `like` and, if `dtypes`, of its dtype.");
}
