// The job of `nibble rl`: reinforcement learning with rollouts and updates of one model.
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

// Either `config` or `text` is required. Command-line values take precedence over the config's.
struct RlOptions {
    std::string config;            // a YAML file; docs/topics/rl.md lists its keys
    std::string text;              // replaces `config`: the YAML text
    std::vector<std::string> set;  // "key=value": overrides of the config's keys
    bool resume = false;           // continue from the newest checkpoint in the output folder
    std::string device = "cpu";    // cpu, cuda, cuda:N
    std::string kernels;           // CPU kernels: avx512, avx2, ref; empty: the fastest
    int threads = 0;               // 0: one per core
    double gpu_memory = 1;         // share of a GPU's memory that the job may use
    CommandText command;
};

// Results of one step of rollouts and updates.
struct ReinforcedStep {
    int64_t step = 0;                 // starts at 0
    double reward = 0, accuracy = 0;  // means over the answers; accuracy: share of answers with reward 1
    double seconds = 0;
    int64_t answers = 0, generated_tokens = 0;
    int64_t mismatch_tokens = 0;  // tokens whose log-probability differs in bits between rollout and training
    std::optional<double> validation_reward;  // set in steps with a validation
    JobReport report;                         // text(): a line for people; json(): the line of the run's log
};

// An answer of the model, for the caller's function that judges.
struct AnswerToJudge {
    std::string prompt, expected;  // from the data row
    std::string text;              // text that the model wrote in this turn
    int64_t turn = 0;              // starts at 0
    std::string state;             // JSON: Judgement::state of the previous turn; "null" in the first one
};

// The judgement of an answer.
struct Judgement {
    double reward = 0;           // finite; the rewards of an answer's turns are added
    bool done = true;            // false: the model reads `observation` and writes another turn
    std::string observation;     // not empty unless done
    std::string state = "null";  // JSON, given back with the next turn
    std::string failure;         // not empty: why there is no reward; the answer is left out of the step
};

// Every callback may be empty.
struct RlHooks {
    JobHooks job;  // `note` also receives a description of the run: model, formats, memory
    std::function<void(const ReinforcedStep&)> on_step;  // called from the job's thread
    // Judges the answers of a round instead of the config's rule or environment, in a config with env.function. Returns
    // one judgement for each answer, in order. Called from the job's thread.
    std::function<std::vector<Judgement>(const std::vector<AnswerToJudge>&)> judge;
};

// The state of the run at its end.
struct RlReport {
    int64_t steps = 0;                 // all steps of the run, including earlier ones
    bool made_earlier = false;         // the run was already complete; nothing was done
    std::vector<std::string> outputs;  // folders that were written
    std::vector<std::string> lines;    // messages about the outputs
};

// Runs the config's number of steps. A stop or a deadline saves the state of the last step and returns an error of kind
// cancelled; a call with the same options and `resume` continues with the same bits. Errors by kind: recipe (the
// config, or keys that do not fit the model), usage, file, checkpoint, device, memory, cancelled.
Result<RlReport> reinforce(const RlOptions& options, const RlHooks& hooks);

}  // namespace nibble
