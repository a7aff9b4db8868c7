#include "feedline/cpu.h"

#include <cstdlib>
#include <cstring>

#include "system.h"

namespace feedline {

static Cpu detect() {
    Cpu supported{false, false, false, false};
#ifdef FEEDLINE_X86
    __builtin_cpu_init();
    supported.sse41 = __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("sse4.2");
    supported.avx2 = supported.sse41 && __builtin_cpu_supports("avx2");
    supported.f16c = supported.avx2 && __builtin_cpu_supports("f16c");
#endif
    supported.crc32 = has_crc32_instructions();
    if (const char* limit = std::getenv("FEEDLINE_SIMD")) {
        if (std::strcmp(limit, "portable") == 0) supported = Cpu{false, false, false, false};
        if (std::strcmp(limit, "sse41") == 0) supported.avx2 = supported.f16c = false;
    }
    return supported;
}

const Cpu& cpu() {
    static const Cpu once = detect();
    return once;
}

}  // namespace feedline
