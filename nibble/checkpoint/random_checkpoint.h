// A checkpoint of a published model's shape with random weights, in memory: `nibble bench model --shape` measures, and
// gpu_models compares, models that need not be there.
#pragma once

#include "checkpoint/checkpoint.h"

#include <string>
#include <string_view>

namespace nibble {

// `shape`: smollm2-135m, llama-8b, qwen3-30b-a3b or nemotron-3-nano. Linears in `format`: bf16, fp8, fp8_block128,
// nvfp4, mxfp4 ...; inputs quantized as Model Optimizer does where `inputs` is set. Embedding, head, norms and routers
// stay BF16. `layers`: fewer than the shape has; 0: all.
Result<std::unique_ptr<Checkpoint>> random_checkpoint(std::string_view shape, std::string_view format, bool inputs,
                                                      int layers);

}  // namespace nibble
