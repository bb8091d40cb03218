// Chooses static NVFP4 block scales by the error of the linear's output, as Model Optimizer's `local_hessian` does. Per
// block of 16 inputs, the loss of a candidate scale is d^T H d, with d = w - fake quantized w, and H the mean of x x^T
// over the block's inputs, shared by all rows. The first candidate with the least loss wins.
#pragma once

#include "base/thread_pool.h"
#include "kernels/quantize.h"
#include "kernels/solver.h"
#include "quant/weight_solver.h"

namespace nibble {

// spec: nvfp4 with static scales; its search is `sweep` (the 126 E4M3 values) or `multipliers` of the block maximum.
// hessian: [K/16, 16, 16] (LocalGram::mean); empty: the plain squared error, for experts that saw no token. out: nvfp4,
// with tensor_scale set by the caller to tensor_scale(spec, amax). Adds only to stats.raised_blocks.
//
// If a block's H is zero, every candidate has loss 0, and Model Optimizer uses the first: the smallest scale, which
// makes the block's weights zero. With spec.search.maximum_when_blind the plain squared error decides instead, and if
// that is zero as well, the block's maximum. Such blocks are counted in both cases. Error: a hessian of another shape.
Result<SolveGaps> quantize_local_hessian(const MatrixView& weight, std::span<const float> hessian,
                                         const WeightSpec& spec, const TensorAmax& amax, const SolverKernels& kernels,
                                         ThreadPool& pool, const QuantSpan& out, QuantStats& stats);

}  // namespace nibble
