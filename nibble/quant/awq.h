// AWQ-lite (Lin et al., 2023) for NVFP4 as Model Optimizer computes it (docs/reference: ptq.md 2.7): inputs of a linear
// are divided, its weight's columns multiplied, by
//
//   s_k = a_k^alpha / (v_k^(1 - alpha) + tiny), clamped to [1e-4, 1e4], over sqrt(max s * min s)
//   a_k = mean |x_k| over tokens;  v_k = mean over rows of |w_k| / (maximum of its block of 16 + tiny)
//
// alpha = 0, 0.1 ... 1: the first of least squared error of the output over sampled rows wins. Linears that share an
// input take one scale, searched for all of them together (Model Optimizer searches each and averages).
#pragma once

#include "base/thread_pool.h"
#include "kernels/quantize.h"
#include "kernels/solver.h"

#include <functional>

namespace nibble {

struct AwqInputs {
    std::span<const float> mean_magnitude;  // [K]
    const float* rows = nullptr;            // sampled inputs [count, K]
    int64_t count = 0;
    bool quantized = false;  // NVFP4 inputs (W4A4): the rows are fake quantized too, under their own maximum
    // [K] numbers of classes, dense from 0, whose columns must take one scale: a and v are averaged over each. Empty:
    // every column is its own.
    std::span<const int32_t> classes;
    bool powers_of_two = false;  // scales are rounded to them
};

// Weights that share the input, [N_i, K] in BF16 or F32, handed out one at a time: the experts of a layer do not lie in
// memory together. The view lives until the next call.
struct AwqWeights {
    size_t count = 0;
    std::function<Result<MatrixView>(size_t)> read;
};

struct AwqScales {
    float alpha = 0;
    std::vector<float> scale;  // [K]: W * scale is quantized, 1 / scale is `pre_quant_scale`
    std::vector<double> loss;  // per alpha: mean squared error of the output
    double unscaled = 0;       // the same with scales of 1
};

// spec: nvfp4, its maxima (no search). step: of alpha, in (0, 1]. Each weight has its own tensor scale in the search.
// An input that was never seen (all means zero, or no rows) is an error.
Result<AwqScales> awq_lite(const AwqWeights& weights, const AwqInputs& inputs, const WeightSpec& spec, float step,
                           const QuantizeKernels& quantize, const SolverKernels& solver, ThreadPool& pool);

}  // namespace nibble
