#include <nanobind/nanobind.h>
void bind_ctf(nanobind::module_&) {}
