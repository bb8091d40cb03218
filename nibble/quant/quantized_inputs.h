// A model with the weights it has and inputs quantized as a plan says: what GPTQ's Hessians are made of in Model
// Optimizer where inputs are quantized, too (W4A4; ptq.md 2.7: X is the activation after the input quantizer, weight
// quantizers off, all input quantizers on).
#pragma once

#include "checkpoint/checkpoint.h"
#include "kernels/matmul.h"
#include "quant/input_scales.h"

namespace nibble {

// `source` outlives it. Its tensors' activation formats and input scales are the plan's; run it with
// WeightOptions::quantize_activations.
std::unique_ptr<Checkpoint> with_quantized_inputs(const Checkpoint& source, const Plan& plan,
                                                  const ActivationScales& scales);

// Rows as a product on NVFP4 inputs sees them: code * E4M3 block scale * input_scale. cols: a multiple of 16.
void nvfp4_inputs(const MatmulKernels& kernels, const float* x, int64_t rows, int64_t cols, float input_scale,
                  ThreadPool& pool, float* out);

}  // namespace nibble
