// A model with its own weights and with inputs quantized as a plan specifies. Model Optimizer computes GPTQ's Hessians
// with it if inputs are quantized (W4A4): X is the activation after the input quantizer, with weight quantizers off and
// all input quantizers on.
#pragma once

#include "checkpoint/checkpoint.h"
#include "kernels/matmul.h"
#include "quant/input_scales.h"

namespace nibble {

// Returns a checkpoint with the plan's activation formats and input scales. `source` must outlive it. Run it with
// WeightOptions::quantize_activations.
std::unique_ptr<Checkpoint> with_quantized_inputs(const Checkpoint& source, const Plan& plan,
                                                  const ActivationScales& scales);

// Writes the rows as a product with NVFP4 inputs reads them: code * E4M3 block scale * input_scale. x and out: [rows,
// cols]; cols: a multiple of 16.
void nvfp4_inputs(const MatmulKernels& kernels, const float* x, int64_t rows, int64_t cols, float input_scale,
                  ThreadPool& pool, float* out);

}  // namespace nibble
