// feedline._native._kernels: one function per kernel file registers that kernel. Bindings check arguments, release the
// GIL and call; no algorithm lives here.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_order(nb::module_& m);
void bind_fetch(nb::module_& m);
void bind_gather(nb::module_& m);
void bind_crc32c(nb::module_& m);
void bind_ctf(nb::module_& m);
void bind_merge(nb::module_& m);
void bind_parquet(nb::module_& m);
void bind_tensors(nb::module_& m);
void bind_quantize(nb::module_& m);
void bind_shared_memory(nb::module_& m);

NB_MODULE(_kernels, m) {
    // A process that ends with a source still alive has leaked nothing that matters; users need no list of it.
    nb::set_leak_warnings(false);
    m.doc() = "feedline's native kernels; see native/include/feedline for their contracts";
    bind_order(m);
    bind_fetch(m);
    bind_gather(m);
    bind_crc32c(m);
    bind_ctf(m);
    bind_merge(m);
    bind_parquet(m);
    bind_tensors(m);
    bind_quantize(m);
    bind_shared_memory(m);
}
