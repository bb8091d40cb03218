// Models to measure with, by name, and weights to start from.
#pragma once

#include "model/parameters.h"

#include <string>
#include <string_view>

namespace nibble {

// config.json of a shape: 60m, 124m, 350m, 1b (llamas with an untied head), and those of
// checkpoint/random_checkpoint.h. `layers`: fewer than it has; 0: all. Error: an unknown name, with the choices.
Result<Json> train_shape(std::string_view name, int64_t layers);

// Parameters of a config.json as training starts from them. Random numbers are Philox, keyed by the seed, the
// parameter's id and the element.
//   matrices       normal, deviation 0.02; those that write to the residual stream (o_proj, down_proj, out_proj)
//   divided
//                  by sqrt(2 * layers)
//   norms, D       1;  biases, e_score_correction_bias  0;  conv1d  uniform within 1 / sqrt(taps)
//   A_log          log of uniform 1 ... 16;  dt_bias  softplus^-1 of dt, log-uniform 0.001 ... 0.1
Result<std::shared_ptr<Parameters>> random_start(Json config, DType published, uint64_t seed, ThreadPool& pool);

}  // namespace nibble
