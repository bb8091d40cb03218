#include "kernels/cpu/elementwise_rows.h"
#include "kernels/cpu/gradient_rows.h"
#include "kernels/cpu/vec_avx512.h"

#define NIBBLE_ISA avx512
#include "kernels/cpu/exp.inc"

#include "kernels/cpu/activations.inc"
#include "kernels/cpu/soft_cap.inc"

#include "kernels/cpu/elementwise.inc"

#include "kernels/cpu/gradient.inc"

namespace nibble::cpu {

constinit const ElementwiseRows elementwise_avx512 = avx512::elementwise_rows;
constinit const GradientRows gradient_avx512 = avx512::gradient_rows;

}  // namespace nibble::cpu
