// A checkpoint in memory with the shape of a published model and random weights. Used where the real model is not
// available: `nibble bench model --shape`, tests/cuda/models.
#pragma once

#include "checkpoint/checkpoint.h"
#include "checkpoint/published_shapes.h"

#include <string>
#include <string_view>

namespace nibble {

struct RandomModel {
    std::string shape;            // one of the shapes that its error message lists: "llama-8b"
    std::string format = "bf16";  // format of its linears: bf16, fp8, fp8_block128, nvfp4, mxfp4 ...
    bool inputs = true;           // inputs are quantized as in Model Optimizer for this weight format
    bool head = false;            // the output head has this format too, if it is not tied
    bool prediction = false;      // has layers for multi-token prediction, in BF16 (nemotron-3-nano)
    int layers = 0;               // number of layers, at most that of the shape; 0: all
    int64_t vocab = 0;            // size of the vocabulary, at most that of the shape; 0: all
};

// Creates the checkpoint. Embedding, norms and routers stay BF16. Error: an unknown shape or format.
Result<std::unique_ptr<Checkpoint>> random_checkpoint(const RandomModel& model);

// Creates a plain checkpoint for any config.json that the engine can run, without layers for multi-token prediction.
// Errors: those of model_config().
Result<std::unique_ptr<Checkpoint>> random_checkpoint(Json config);

}  // namespace nibble
