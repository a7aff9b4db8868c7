#include "feedline/cpu.h"

#include <cstdlib>
#include <cstring>

namespace feedline {

static Cpu detect() {
    Cpu found{false, false, false};
#ifdef FEEDLINE_X86
    __builtin_cpu_init();
    found.sse41 = __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("sse4.2");
    found.avx2 = found.sse41 && __builtin_cpu_supports("avx2");
    found.f16c = found.avx2 && __builtin_cpu_supports("f16c");
#endif
    if (const char* limit = std::getenv("FEEDLINE_SIMD")) {
        if (std::strcmp(limit, "portable") == 0) found = Cpu{false, false, false};
        if (std::strcmp(limit, "sse41") == 0) found.avx2 = found.f16c = false;
    }
    return found;
}

const Cpu& cpu() {
    static const Cpu once = detect();
    return once;
}

}  // namespace feedline
