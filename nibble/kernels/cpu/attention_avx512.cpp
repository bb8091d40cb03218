#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/vec_avx512.h"

#define NIBBLE_ISA avx512
#include "kernels/cpu/exp.inc"

#include "kernels/cpu/soft_cap.inc"

#include "kernels/cpu/attention.inc"

namespace nibble::cpu {

constinit const AttentionTiles attention_avx512 = avx512::attention_tiles;

}  // namespace nibble::cpu
