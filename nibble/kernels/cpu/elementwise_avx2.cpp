#include "kernels/cpu/elementwise_rows.h"
#include "kernels/cpu/gradient_rows.h"
#include "kernels/cpu/vec_avx2.h"

#define NIBBLE_ISA avx2
#include "kernels/cpu/exp.inc"

#include "kernels/cpu/activations.inc"
#include "kernels/cpu/soft_cap.inc"

#include "kernels/cpu/elementwise.inc"

#include "kernels/cpu/gradient.inc"

namespace nibble::cpu {

constinit const ElementwiseRows elementwise_avx2 = avx2::elementwise_rows;
constinit const GradientRows gradient_avx2 = avx2::gradient_rows;

}  // namespace nibble::cpu
