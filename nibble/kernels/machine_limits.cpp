#include "kernels/machine_limits.h"

#include "kernels/cpu/features.h"
#include "kernels/cpu/limits.h"

#include <cmath>
#include <cstring>

namespace nibble {
namespace {

int64_t scalar_multiply_add(int64_t rounds) {
    constexpr int chains = 8;
    float sum[chains] = {};
    for (int64_t i = 0; i < rounds; ++i)
        for (float& s : sum) s = std::fma(0.5f, 0.25f, s);
    volatile float keep = 0;
    for (const float s : sum) keep = keep + s;
    return rounds * chains * 2;
}

uint64_t scalar_read(const std::byte* p, int64_t n) {
    uint64_t all = 0;
    for (int64_t i = 0; i < n; i += 8) {
        uint64_t word;
        std::memcpy(&word, p + i, sizeof word);
        all ^= word;
    }
    return all;
}

constexpr MachineLimits entries[] = {
#if defined(__x86_64__)
    {"avx512", cpu::has_avx512, [](int64_t rounds) { return cpu::limits_avx512.multiply_add(rounds); },
     [](const std::byte* p, int64_t n) { return cpu::limits_avx512.read(p, n); }},
    {"avx2", cpu::has_avx2, [](int64_t rounds) { return cpu::limits_avx2.multiply_add(rounds); },
     [](const std::byte* p, int64_t n) { return cpu::limits_avx2.read(p, n); }},
#endif
    {"ref", [] { return true; }, scalar_multiply_add, scalar_read},
};

}  // namespace

std::span<const MachineLimits> machine_limits() { return entries; }

Result<const MachineLimits*> select_machine_limits(std::string_view name) {
    for (const MachineLimits& m : entries)
        if (m.name == name && m.supported()) return &m;
    return fail("machine limits '{}': unknown or not supported by this CPU", name);
}

}  // namespace nibble
