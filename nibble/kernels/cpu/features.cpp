#include "kernels/cpu/features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace nibble::cpu {

bool always() { return true; }

#if defined(__x86_64__)
bool has_avx2() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;  // clang 14 does not know __builtin_cpu_supports("f16c")
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) &&
           (ecx & bit_F16C) && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
}
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
#endif

}  // namespace nibble::cpu
