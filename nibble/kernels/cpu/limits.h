// The loops of machine_limits.h for one instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble::cpu {

struct LimitLoops {
    int64_t (*multiply_add)(int64_t rounds);
    uint64_t (*read)(const std::byte* p, int64_t n);
};

extern const LimitLoops limits_avx2, limits_avx512, limits_amx;

}  // namespace nibble::cpu
