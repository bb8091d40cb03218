// The job of `nibble rl`: reinforcement learning, rollouts and updates of one model.
#pragma once

#include "nibble/command_text.h"
#include "nibble/error.h"
#include "nibble/hooks.h"
#include "nibble/report.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace nibble {

struct RlOptions {
    std::string config;            // a YAML file; docs/rl.md has its keys
    std::string text;              // instead: the text of one
    std::vector<std::string> set;  // "key=value": keys that win over those of the config
    bool resume = false;           // continue from the newest checkpoint in the output
    std::string device = "cpu";    // cpu, cuda, cuda:N
    std::string kernels;           // CPU kernels: avx512, avx2, ref; empty: the fastest
    int threads = 0;               // 0: one per core
    double gpu_memory = 1;         // share of a GPU's memory that the job may take
    CommandText command;
};

// One step of rollouts and updates, after it.
struct ReinforcedStep {
    int64_t step = 0;                 // from 0
    double reward = 0, accuracy = 0;  // means over the answers; accuracy: share with the reward 1
    double seconds = 0;
    int64_t answers = 0, generated_tokens = 0;
    int64_t mismatch_tokens = 0;              // whose log-probability has other bits in rollout and training
    std::optional<double> validation_reward;  // where a validation was due
    JobReport report;                         // a line for people; the line of the run's log
};

struct RlHooks {
    JobHooks job;                                        // `note` also gets what the run is: model, formats, memory
    std::function<void(const ReinforcedStep&)> on_step;  // called from the thread of the job
};

struct RlReport {
    int64_t steps = 0;                 // that the run has made, earlier ones included
    bool made_earlier = false;         // the run was complete; nothing was done
    std::vector<std::string> outputs;  // folders that were written
    std::vector<std::string> lines;    // what was written, for people
};

// Runs until the config's number of steps. A stop or a deadline saves the state of the last step and returns an error
// of kind cancelled; the same options with `resume` continue to the same bits. Errors by kind: recipe (the config, or
// keys that do not fit the model), usage, file, checkpoint, device, memory, cancelled.
Result<RlReport> reinforce(const RlOptions& options, const RlHooks& hooks);

}  // namespace nibble
