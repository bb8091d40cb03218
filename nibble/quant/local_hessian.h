// Static NVFP4 block scales by the error of the linear's output, as Model Optimizer's `local_hessian` computes them
// (docs/reference: ptq.md 2.6): per block of 16 inputs the loss of a candidate is d^T H d, d = w - fake quantized w,
// H the mean of x x^T over the block's inputs, shared by all rows. The first candidate of least loss wins.
#pragma once

#include "base/thread_pool.h"
#include "kernels/quantize.h"
#include "kernels/solver.h"
#include "quant/weight_solver.h"

namespace nibble {

// spec: nvfp4 with static scales; its search is `sweep` (the 126 E4M3 values) or `multipliers` of the block maximum.
// hessian: [K/16, 16, 16] (LocalGram::mean); empty: the plain squared error, for experts that saw no token.
// out: nvfp4, tensor_scale set by the caller to tensor_scale(spec, amax). Adds to stats.raised_blocks only.
//
// A block whose H is zero loses nothing under any candidate, so Model Optimizer takes the first: the smallest scale,
// which makes the block's weights zero. With spec.search.maximum_when_blind the plain squared error chooses there, and
// where that vanishes as well, the block's maximum. Such blocks are counted either way.
Result<SolveGaps> quantize_local_hessian(const MatrixView& weight, std::span<const float> hessian,
                                         const WeightSpec& spec, const TensorAmax& amax, const SolverKernels& kernels,
                                         ThreadPool& pool, const QuantSpan& out, QuantStats& stats);

}  // namespace nibble
