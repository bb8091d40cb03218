#include "kernels/cpu/features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
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

#if defined(__x86_64__) && defined(__linux__)
bool has_amx() {
    static const bool usable = [] {
        unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
        constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;  // leaf 7, EDX
        if (!has_avx512() || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
        if ((edx & amx_bf16) == 0 || (edx & amx_tile) == 0) return false;
        constexpr unsigned avx512_bf16 = 1u << 5;  // leaf 7, 1, EAX
        if (!__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) || (eax & avx512_bf16) == 0) return false;
        constexpr long request_permission = 0x1023, tile_data = 18;  // arch_prctl: ARCH_REQ_XCOMP_PERM
        return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
    }();
    return usable;
}
#else
bool has_amx() { return false; }
#endif

}  // namespace nibble::cpu
