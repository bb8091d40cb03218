// What `nibble rl` says at its start about the formats of updates and rollouts.
#pragma once

#include "rl/rl_config.h"
#include "train/train_engine.h"

namespace nibble {

// Each layer's products as `nibble train` has them (cli/train_report.h), then what rollouts have of their own, and how
// keys, values and queries are kept.
void print_rl_formats(const RlConfig& config, const TrainEngine& trainer);

}  // namespace nibble
