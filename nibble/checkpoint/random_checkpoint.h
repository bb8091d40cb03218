// A checkpoint of a published model's shape with random weights, in memory: `nibble bench model --shape` measures, and
// tests/cuda/models compares, models that need not be there.
#pragma once

#include "checkpoint/checkpoint.h"

#include <string>
#include <string_view>

namespace nibble {

struct RandomModel {
    std::string shape;            // smollm2-135m, llama-8b, qwen3-8b, qwen3-30b-a3b or nemotron-3-nano
    std::string format = "bf16";  // of its linears: bf16, fp8, fp8_block128, nvfp4, mxfp4 ...
    bool inputs = true;           // quantized as Model Optimizer does with weights in that format
    bool head = false;            // the output head is in that format too, where it has a matrix of its own
    bool prediction = false;      // with layers for multi-token prediction, in BF16 (nemotron-3-nano)
    int layers = 0;               // fewer than the shape has; 0: all
    int64_t vocab = 0;            // likewise
};

// Embedding, norms and routers stay BF16.
Result<std::unique_ptr<Checkpoint>> random_checkpoint(const RandomModel& model);

// config.json of a shape that random_checkpoint() knows. Error: an unknown one, with the choices.
Result<Json> shape_config(std::string_view shape);
// A plain checkpoint of any config.json that the engine can run, without layers for multi-token prediction. Errors:
// those of model_config().
Result<std::unique_ptr<Checkpoint>> random_checkpoint(Json config);

}  // namespace nibble
