// Texts of training and RL: lines for users and lines of the log.
#pragma once

#include "rl/rl_config.h"
#include "train/train_config.h"
#include "train/train_engine.h"
#include "train/train_run.h"

#include <string>
#include <vector>

namespace nibble {

// The products of every linear; layers that are treated alike are one line: "layers 0-11 q_proj: forward NVFP4 ...".
std::vector<std::string> train_table_lines(const TrainEngine& trainer);
// Model, steps, precision, products, memory (where it is not empty), and what tensor cores for FP4 would change.
std::vector<std::string> train_start_lines(const TrainConfig& config, const TrainEngine& trainer,
                                           const std::string& memory);
// The formats of rollouts: their precision where it is their own, KV cache and queries.
std::vector<std::string> rollout_lines(const RlConfig& config);
// A step in the log, and as a line in MaxText's words.
Json step_json(const StepReport& report, double memory_gib);
std::string step_text(const StepReport& report, double memory_gib);

}  // namespace nibble
