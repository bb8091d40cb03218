// AWQ-lite (Lin et al., 2023) for NVFP4 as Model Optimizer computes it (docs/reference: ptq.md 2.7): inputs of a linear
// are divided, its weight's columns multiplied, by
//
//   s_k = a_k^alpha / (v_k^(1 - alpha) + tiny), clamped to [1e-4, 1e4], over sqrt(max s * min s)
//   a_k = mean |x_k| over tokens;  v_k = mean over rows of |w_k| / (maximum of its block of 16 + tiny)
//
// alpha = 0, 0.1 ... 1: the first of least squared error of the output over sampled rows wins.
#pragma once

#include "base/thread_pool.h"
#include "kernels/quantize.h"
#include "kernels/solver.h"

namespace nibble {

struct AwqInputs {
    std::span<const float> mean_magnitude;  // [K]
    const float* rows = nullptr;            // sampled inputs [count, K]
    int64_t count = 0;
    bool quantized = false;  // NVFP4 inputs (W4A4): the rows are fake quantized too, under their own maximum
};

struct AwqScales {
    float alpha = 0;
    std::vector<float> scale;  // [K]: W * scale is quantized, 1 / scale is `pre_quant_scale`
    std::vector<double> loss;  // per alpha: mean squared error of the output
};

// spec: nvfp4. step: of alpha, in (0, 1]. Linears that share an input take one scale: their weights stacked as rows.
// An input that was never seen (all means zero, or no rows) is an error.
Result<AwqScales> awq_lite(const MatrixView& weight, const AwqInputs& inputs, const WeightSpec& spec, float step,
                           const QuantizeKernels& quantize, const SolverKernels& solver, ThreadPool& pool);

}  // namespace nibble
