#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec_avx2.h"

#define NIBBLE_ISA avx2
#include "kernels/cpu/codes.inc"

#include "kernels/cpu/blocks.inc"

#include "kernels/cpu/nvfp4.inc"

#include "kernels/cpu/elements.inc"

namespace nibble::cpu {

constinit const RowKernels rows_avx2 = avx2::row_kernels;

}  // namespace nibble::cpu
