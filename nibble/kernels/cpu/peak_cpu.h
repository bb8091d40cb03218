// Loops of kernels/peak.h per instruction set.
#pragma once

#include <cstdint>

namespace nibble::cpu {

inline constexpr int peak_chains = 10;  // enough to hide the latency of two units, few enough for 16 registers

float peak_avx2(int64_t rounds);
float peak_avx512(int64_t rounds);

}  // namespace nibble::cpu
