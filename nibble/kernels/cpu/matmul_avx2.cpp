#include "kernels/cpu/matmul_ops_avx2.h"
#include "kernels/cpu/matmul_tiles.h"

#define NIBBLE_ISA avx2
#include "kernels/cpu/exp.inc"

#include "kernels/cpu/activations.inc"

#include "kernels/cpu/matmul_tiles.inc"

namespace nibble::cpu {

constinit const MatmulTiles matmul_avx2 = avx2::matmul_tiles;

}  // namespace nibble::cpu
