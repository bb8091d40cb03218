#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec_avx512.h"

#define NIBBLE_ISA avx512
#include "kernels/cpu/codes.inc"

#include "kernels/cpu/blocks.inc"

#include "kernels/cpu/nvfp4.inc"

#include "kernels/cpu/elements.inc"

namespace nibble::cpu {

constinit const RowKernels rows_avx512 = avx512::row_kernels;

}  // namespace nibble::cpu
