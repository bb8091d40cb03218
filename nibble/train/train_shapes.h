// Built-in model shapes for measurements, and random initial weights.
#pragma once

#include "model/parameters.h"

#include <string>
#include <string_view>

namespace nibble {

// Returns config.json of a shape: 60m, 124m, 350m, 1b (Llama models with an untied head), and those of
// checkpoint/random_checkpoint.h. `layers`: a smaller number of layers; 0: all. Error: an unknown name, with the
// choices.
Result<Json> train_shape(std::string_view name, int64_t layers);

// Returns random initial parameters for a config.json. Random numbers are Philox, keyed by seed, parameter id and
// element.
//   matrices       normal with deviation 0.02; o_proj, down_proj and out_proj, which write to the residual stream,
//                  divide it by sqrt(2 * layers)
//   norms, D       1;  biases, e_score_correction_bias  0;  conv1d  uniform within 1 / sqrt(taps)
//   A_log          log of uniform 1 ... 16;  dt_bias  softplus^-1 of dt, log-uniform 0.001 ... 0.1
Result<std::shared_ptr<Parameters>> random_start(Json config, DType published, uint64_t seed, ThreadPool& pool);

}  // namespace nibble
