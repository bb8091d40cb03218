// GPTQ (Frantar et al., 2023) on NVFP4, as Model Optimizer's `gptq` computes it (docs/reference: ptq.md 2.7): natural
// column order, the error of a column answered inside its group of 128 columns at once and after the group for the
// rest, quantization by fake quantization with the maximum's scales. Static scales are those of the weight before any
// feedback; dynamic ones follow the partly updated block. The fake quantized values, rounded to BF16, are stored by
// export's rules.
#pragma once

#include "base/thread_pool.h"
#include "kernels/quantize.h"
#include "kernels/solver.h"
#include "quant/weight_solver.h"

namespace nibble {

// spec: nvfp4, search max. hessian: [K, K], 2/n sum x x^T or any multiple of it, undamped. Columns of the weight that
// are all zero leave H. Where the damped H is not positive definite (all inputs were zero, or no damping and fewer
// tokens than columns) every column is rounded without feedback, as Model Optimizer does; the result says so.
Result<SolveGaps> quantize_gptq(const MatrixView& weight, std::span<const float> hessian, const WeightSpec& spec,
                                const TensorAmax& amax, const GptqOptions& options, const SolverKernels& kernels,
                                ThreadPool& pool, const QuantSpan& out);

}  // namespace nibble
