// The loops of update_rules.h for AVX2. Everything but the entries is static (see CMakeLists.txt).
#include "update_rules.h"

namespace feedline {

template <>
const UpdateLoops<float>& update_loops_avx2<float>() {
    static const UpdateLoops<float> loops = all_loops<float>();
    return loops;
}

template <>
const UpdateLoops<double>& update_loops_avx2<double>() {
    static const UpdateLoops<double> loops = all_loops<double>();
    return loops;
}

}  // namespace feedline
