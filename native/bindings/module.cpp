// feedline._native._kernels: each file of bindings has a function that registers its kernels. Bindings check arguments,
// release the GIL and call. They have no algorithms.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_order(nb::module_& m);
void bind_packing(nb::module_& m);
void bind_balance(nb::module_& m);
void bind_packed_rows(nb::module_& m);
void bind_fetch(nb::module_& m);
void bind_array_checks(nb::module_& m);
void bind_fresh_arrays(nb::module_& m);
void bind_copy(nb::module_& m);
void bind_staged(nb::module_& m);
void bind_gatherer(nb::module_& m);
void bind_crc32c(nb::module_& m);
void bind_ctf(nb::module_& m);
void bind_merge(nb::module_& m);
void bind_parquet(nb::module_& m);
void bind_arrow(nb::module_& m);
void bind_cbf(nb::module_& m);
void bind_htk(nb::module_& m);
void bind_mlf(nb::module_& m);
void bind_rows(nb::module_& m);
void bind_pictures(nb::module_& m);
void bind_recordio(nb::module_& m);
void bind_tar(nb::module_& m);
void bind_tensors(nb::module_& m);
void bind_tfrecord(nb::module_& m);
void bind_codes(nb::module_& m);
void bind_shared_memory(nb::module_& m);
void bind_one_hot(nb::module_& m);
void bind_statistics(nb::module_& m);
void bind_update(nb::module_& m);

NB_MODULE(_kernels, m) {
    // A process may end while sources are alive. That leaks nothing of importance, so users get no list of it.
    nb::set_leak_warnings(false);
    m.doc() = "feedline's native kernels. Their contracts: native/include/feedline.";
#if defined(FEEDLINE_LINUX)
    m.attr("PORTABLE") = false;
#else
    m.attr("PORTABLE") = true;
#endif
    bind_order(m);
    bind_packing(m);
    bind_balance(m);
    bind_packed_rows(m);
    bind_fetch(m);
    bind_array_checks(m);
    bind_fresh_arrays(m);
    bind_copy(m);
    bind_staged(m);
    bind_gatherer(m);
    bind_crc32c(m);
    bind_ctf(m);
    bind_merge(m);
    bind_parquet(m);
    bind_arrow(m);
    bind_cbf(m);
    bind_htk(m);
    bind_mlf(m);
    bind_rows(m);
    bind_pictures(m);
    bind_recordio(m);
    bind_tar(m);
    bind_tensors(m);
    bind_tfrecord(m);
    bind_codes(m);
    bind_shared_memory(m);
    bind_one_hot(m);
    bind_statistics(m);
    bind_update(m);
}
