#include "kernels/cpu/limits.h"
#include "kernels/cpu/vec_avx2.h"

#define NIBBLE_ISA avx2
#include "kernels/cpu/limits.inc"

namespace nibble::cpu {

constinit const LimitLoops limits_avx2{avx2::multiply_add_limit, avx2::read_limit};

}  // namespace nibble::cpu
