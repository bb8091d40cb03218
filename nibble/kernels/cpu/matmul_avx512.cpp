#include "kernels/cpu/matmul_ops_avx512.h"
#include "kernels/cpu/matmul_tiles.h"

#define NIBBLE_ISA avx512
#include "kernels/cpu/exp.inc"

#include "kernels/cpu/activations.inc"

#include "kernels/cpu/matmul_tiles.inc"

namespace nibble::cpu {

constinit const MatmulTiles matmul_avx512 = avx512::matmul_tiles;

}  // namespace nibble::cpu
