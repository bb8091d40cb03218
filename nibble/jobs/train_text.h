// Texts of training and RL: messages and log lines.
#pragma once

#include "rl/rl_config.h"
#include "train/train_config.h"
#include "train/train_engine.h"
#include "train/train_run.h"

#include <string>
#include <vector>

namespace nibble {

// Describes the products of every linear; layers with equal products share a line: "layers 0-11 q_proj: forward NVFP4
// ...".
std::vector<std::string> train_table_lines(const TrainEngine& trainer);
// Describes model, steps, precision, products, memory (unless empty), and what FP4 tensor cores would change.
std::vector<std::string> train_start_lines(const TrainConfig& config, const TrainEngine& trainer,
                                           const std::string& memory);
// Describes the formats of rollouts: their precision if it differs from training, KV cache and queries.
std::vector<std::string> rollout_lines(const RlConfig& config);
// Return a step as JSON for the log, and as a line in the format of MaxText.
Json step_json(const StepReport& report, double memory_gib);
std::string step_text(const StepReport& report, double memory_gib);

}  // namespace nibble
