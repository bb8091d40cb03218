// AWQ-lite (Lin et al., 2023) for NVFP4, as in Model Optimizer's `awq_lite`. Inputs of a linear are divided by a scale
// per column, and the weight's columns are multiplied by it:
//
//   s_k = a_k^alpha / (v_k^(1 - alpha) + tiny), clamped to [1e-4, 1e4], divided by sqrt(max s * min s)
//   a_k = mean |x_k| over tokens;  v_k = mean over rows of |w_k| / (maximum of its block of 16 + tiny)
//
// alpha = 0, 0.1 ... 1: the first value with the least squared error of the output over sampled rows is used. Linears
// that share an input get one scale, searched for all of them together (Model Optimizer searches each and averages).
#pragma once

#include "base/thread_pool.h"
#include "kernels/quantize.h"
#include "kernels/solver.h"

#include <functional>

namespace nibble {

struct AwqInputs {
    std::span<const float> mean_magnitude;  // [K]
    const float* rows = nullptr;            // sampled inputs [count, K], row-major
    int64_t count = 0;
    bool quantized = false;  // NVFP4 inputs (W4A4): the rows are fake quantized with their own maximum
    // [K] class numbers, starting at 0. Columns of a class share one scale: a and v are averaged over the class. Empty:
    // every column has its own scale.
    std::span<const int32_t> classes;
    bool powers_of_two = false;  // scales are rounded to powers of two
};

// The weights that share the input, [N_i, K] in BF16 or F32, read one at a time, because all experts of a layer may not
// fit in memory together. A view is valid until the next call.
struct AwqWeights {
    size_t count = 0;
    std::function<Result<MatrixView>(size_t)> read;
};

struct AwqScales {
    float alpha = 0;
    std::vector<float> scale;  // [K]: W * scale is quantized; 1 / scale is `pre_quant_scale`
    std::vector<double> loss;  // mean squared error of the output for each alpha
    double unscaled = 0;       // the same with all scales 1
};

// Searches the scales. spec: nvfp4 or int4 with the scales of maxima. step: step of alpha, in (0, 1]. Each weight has
// its own tensor scale in the search. Errors: an input that was never seen (all means are zero, or there are no rows),
// errors of `weights.read`.
Result<AwqScales> awq_lite(const AwqWeights& weights, const AwqInputs& inputs, const WeightSpec& spec, float step,
                           const QuantizeKernels& quantize, const SolverKernels& solver, ThreadPool& pool);

}  // namespace nibble
