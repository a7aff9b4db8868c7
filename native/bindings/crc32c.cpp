#include <nanobind/nanobind.h>
void bind_crc32c(nanobind::module_&) {}
