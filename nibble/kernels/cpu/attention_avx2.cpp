#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/vec_avx2.h"

#define NIBBLE_ISA avx2
#include "kernels/cpu/exp.inc"

#include "kernels/cpu/soft_cap.inc"

#include "kernels/cpu/attention.inc"

namespace nibble::cpu {

constinit const AttentionTiles attention_avx2 = avx2::attention_tiles;

}  // namespace nibble::cpu
