// The learning rate of a step.
#pragma once

#include "train/train_config.h"

namespace nibble {

// Returns the learning rate of step `step` (from 0) of `steps`. Warm-up: learning_rate * (step + 1) / warmup. Then
// `peak` times the following, with f = final_fraction and p in [0, 1] over the steps after the warm-up (wsd: over the
// last decay_fraction of all steps); p is 0 at the first of them and 1 at step `steps`:
//   cosine    f + (1 - f) (1 + cos(pi p)) / 2         linear  f + (1 - f) (1 - p)
//   wsd       f + (1 - f) (1 - sqrt(p))               constant  1
double learning_rate(const TrainSchedule& schedule, double peak, int64_t step, int64_t steps);

}  // namespace nibble
