// GPTQ (Frantar et al., 2023) for NVFP4 and INT4, as in Model Optimizer's `gptq`. Columns are quantized in natural
// order. The error of a column is compensated at once within its group of 128 columns, and after the group for all
// later columns. Values are fake quantized with the scales of maxima: static scales are those of the weight before
// compensation, dynamic scales those of the partly updated block. The fake quantized values, rounded to BF16, are
// stored by the rules of the export. INT4: the scale of a group follows from its compensated values when its first
// column is solved.
#pragma once

#include "base/thread_pool.h"
#include "kernels/quantize.h"
#include "kernels/solver.h"
#include "quant/weight_solver.h"

namespace nibble {

// spec: nvfp4 or int4 with scales of maxima. hessian: [K, K], any multiple of the sum of x x^T, undamped. Columns of
// the weight that are all zero are removed from H. If the damped H is not positive definite (all inputs are zero, or no
// damping and fewer tokens than columns), every column is rounded without compensation, as in Model Optimizer, and the
// result reports it. Error: a hessian of another shape.
Result<SolveGaps> quantize_gptq(const MatrixView& weight, std::span<const float> hessian, const WeightSpec& spec,
                                const TensorAmax& amax, const GptqOptions& options, const SolverKernels& kernels,
                                ThreadPool& pool, const QuantSpan& out);

}  // namespace nibble
