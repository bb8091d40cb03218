#include "kernels/cpu/limits.h"
#include "kernels/cpu/vec_avx512.h"

#define NIBBLE_ISA avx512
#include "kernels/cpu/limits.inc"

namespace nibble::cpu {

constinit const LimitLoops limits_avx512{avx512::multiply_add_limit, avx512::read_limit};

}  // namespace nibble::cpu
