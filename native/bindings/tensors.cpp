// Tensors of a framework that gives DLPack's table of C functions: looked at in tens of nanoseconds each, where their
// Python attributes take microseconds. Nothing of the framework is linked.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "arrays.h"
#include "merge_batch.h"

namespace nb = nanobind;
using namespace nb::literals;
using feedline::bindings::MergeBatch;
using feedline::bindings::number;
using feedline::bindings::raise;

namespace {

using Tensor = nb::dlpack::dltensor;
constexpr std::int32_t kCpu = 1;
constexpr std::uint8_t kFloat = 2;

// DLPack's DLPackExchangeAPI, version 1.
struct Exchange {
    std::uint32_t major, minor;
    void* previous;
    void* allocate;
    void* to_managed;
    void* from_managed;
    int (*look)(void* object, Tensor* out);
    void* stream;
};

// Looks at tensors of exactly one type; no other thread may change them meanwhile, which the GIL sees to.
class Viewer {
public:
    explicit Viewer(nb::handle type) : type_(type.ptr()) {
        const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__");
        const auto* table = static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
        if (table == nullptr) throw nb::python_error();
        if (table->major != 1 || table->look == nullptr)
            raise<nb::value_error>("expected version 1 of DLPack's functions, got " + number(table->major));
        look_ = table->look;
    }

    // False for what is of another type, or has no strides.
    bool look(nb::handle object, Tensor& out) const {
        if (reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) != type_) return false;
        if (look_(object.ptr(), &out) == 0) return true;
        PyErr_Clear();
        return false;
    }

private:
    PyObject* type_;
    int (*look_)(void*, Tensor*);
};

bool contiguous(const Tensor& tensor) {
    if (tensor.strides == nullptr) return true;
    std::int64_t expected = 1;
    bool dense = true;
    for (std::int32_t d = tensor.ndim; d-- > 0;) {
        if (tensor.shape[d] == 0) return true;
        if (tensor.shape[d] == 1) continue;
        dense = dense && tensor.strides[d] == expected;
        expected *= tensor.shape[d];
    }
    return dense;
}

bool same_shape(const Tensor& a, const Tensor& b) {
    return a.ndim == b.ndim && std::equal(a.shape, a.shape + a.ndim, b.shape);
}

bool same_dtype(const Tensor& a, const Tensor& b) {
    return a.dtype.code == b.dtype.code && a.dtype.bits == b.dtype.bits && a.dtype.lanes == b.dtype.lanes;
}

std::size_t count_of(const Tensor& tensor) {
    std::size_t count = 1;
    for (std::int32_t d = 0; d < tensor.ndim; ++d) count *= static_cast<std::size_t>(tensor.shape[d]);
    return count;
}

std::uintptr_t address_of(const Tensor& tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor.data) + tensor.byte_offset;
}

bool mergeable(const Tensor& tensor) {
    return tensor.device.device_type == kCpu && tensor.dtype.code == kFloat && tensor.dtype.lanes == 1 &&
           (tensor.dtype.bits == 32 || tensor.dtype.bits == 64) && contiguous(tensor);
}

// Adds a job to the batch of its dtype. False: it is none for the kernel, and the batch is as it was.
template <class T>
bool add(MergeBatch<T>& batch, const Viewer& viewer, const Tensor& first, nb::handle inputs, nb::handle outputs) {
    const std::size_t count = count_of(first);
    batch.job(count);
    bool output = false;
    for (nb::handle tensors : {inputs, outputs}) {
        for (nb::handle one : tensors) {
            Tensor seen;
            if (!viewer.look(one, seen) || !mergeable(seen) || !same_dtype(seen, first) || count_of(seen) != count) {
                batch.drop();
                return false;
            }
            output ? batch.output(address_of(seen)) : batch.input(address_of(seen));
        }
        output = true;
    }
    return true;
}

nb::list merge_tensors(nb::handle type, nb::sequence jobs, std::int64_t threads) {
    if (threads < 1) raise<nb::value_error>("expected threads >= 1, got " + number(threads));
    const Viewer viewer(type);
    MergeBatch<float> floats;
    MergeBatch<double> doubles;
    nb::list left;
    for (nb::handle job : jobs) {
        const nb::handle inputs = nb::cast<nb::tuple>(job)[0], outputs = nb::cast<nb::tuple>(job)[1];
        Tensor first;
        if (nb::len(inputs) == 0) throw nb::value_error("expected at least one input for each job, got none");
        const bool ours = viewer.look(nb::object(inputs[0]), first) && mergeable(first) &&
                          (first.dtype.bits == 32 ? add(floats, viewer, first, inputs, outputs)
                                                  : add(doubles, viewer, first, inputs, outputs));
        if (!ours) left.append(job);
    }
    floats.run(static_cast<std::size_t>(threads));
    doubles.run(static_cast<std::size_t>(threads));
    return left;
}

bool all_like(nb::handle type, nb::sequence groups, bool dtypes) {
    const Viewer viewer(type);
    for (nb::handle group : groups) {
        const nb::tuple pair = nb::cast<nb::tuple>(group);
        Tensor like;
        if (!viewer.look(pair[0], like)) return false;
        for (nb::handle one : pair[1]) {
            Tensor seen;
            if (!viewer.look(one, seen) || !same_shape(seen, like) || !contiguous(seen) ||
                (dtypes && !same_dtype(seen, like)))
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
          "Returns the jobs that it cannot do: tensors of other types, of differing sizes, or other than\n"
          "contiguous float32 or float64 tensors of one dtype on the CPU.");
    m.def("all_like", &all_like, "type"_a, "groups"_a, "dtypes"_a,
          "Return whether all tensors of each group (like, tensors) are contiguous, of exactly that type, of\n"
          "the shape of `like` and, if `dtypes`, of its dtype.");
}
