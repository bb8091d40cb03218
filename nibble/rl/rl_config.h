// The configuration of an RL run. Keys and defaults are NeMo RL's where their meaning is the same.
#pragma once

#include "formats/format.h"
#include "kernels/sampling.h"
#include "rl/advantage.h"
#include "rl/answer_rule.h"
#include "rl/policy_loss.h"
#include "rl/reward_shaping.h"
#include "rl/tasks.h"
#include "train/cache_scales.h"
#include "train/train_config.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct RlGeneration {
    int64_t most_tokens = 0;                       // per turn; 0: limited by the sequence length only
    double temperature = 1;                        // temperature of the distribution that is sampled and learned; > 0
    double top_p = 1;                              // 1: off
    int64_t top_k = 0;                             // 0: off
    std::optional<double> validation_temperature;  // 0: greedy; absent: `temperature`
    std::optional<double> validation_top_p;        // absent: `top_p`
    std::vector<int32_t> stop_tokens;              // in addition to the model's end tokens
    std::vector<std::string> stop_texts;
    std::optional<TrainPrecision> precision;  // absent: rollouts use the updates' weights and precision
    TrainCache cache;                         // mirrored if `precision` is absent

    SamplingParams sampling() const {
        return {.temperature = static_cast<float>(temperature), .top_k = top_k, .top_p = static_cast<float>(top_p)};
    }
};

// Asynchronous rollouts: answers may continue in later steps with newer weights.
struct RlAsync {
    int64_t most_age = 1;           // steps; answers that began earlier are dropped
    int64_t prompts_in_flight = 0;  // 0: 1.5 times the prompts of a step
    int64_t round_tokens = 256;     // tokens per answer between two checks whether enough answers are whole
};

struct RlTask {
    TaskKind kind = TaskKind::sum;  // kind of generated questions
    int difficulty = 1;
    std::filesystem::path train, validation;  // JSON Lines files used instead (rl/question_rows.h); empty: none
    std::string input_key = "input", output_key = "output";
    AnswerRewardOptions reward;        // for answers to rows of files
    std::string prompt = "{}";         // {} is replaced with the question
    bool chat = true;                  // sends the prompt as a user message through the model's chat template
    std::vector<std::string> command;  // command of an environment that judges; empty: none
    int64_t processes = 1;
    double timeout_seconds = 30;
    std::string function;  // name of the caller's function that judges; empty: none

    // Returns whether an environment judges instead of the task's own rule.
    bool has_environment() const { return !command.empty() || !function.empty(); }
};

struct RlConfig {
    std::filesystem::path model, output;
    bool resume = false;
    uint64_t seed = 42;
    int64_t prompts = 32, generations = 16;  // prompts per step; answers per prompt
    int64_t steps = 1'000'000;
    int64_t train_batch = 0;  // answers per update; 0: all answers of the step
    int64_t length = 512;     // tokens of a prompt and its answer, over all turns
    int64_t most_turns = 1;   // per answer
    int64_t row_tokens =
        0;  // answers are packed into training rows of up to this many tokens; 0: one per row on a CPU, 16,384 on a GPU

    AdvantageOptions advantage;
    bool dynamic_sampling = false;  // replaces groups whose rewards are all equal
    int64_t most_batches = 10;      // maximum number of batches of a step with dynamic sampling
    double batch_multiplier = 1;    // dynamic sampling: prompts of a batch = floor(this times `prompts`)
    int64_t batch_prompts() const { return static_cast<int64_t>(static_cast<double>(prompts) * batch_multiplier); }
    std::optional<RlAsync> async;  // absent: all rollouts of a step end before its update
    // answers whose seq_mult_prob_error() exceeds it are excluded from the loss
    std::optional<double> seq_error_threshold;
    bool overlong_filtering = false;  // excludes answers that were cut off from the loss
    std::optional<RewardScaling> scaling;
    std::optional<RewardShaping> shaping;
    PolicyLossOptions loss;

    TrainPrecision precision;
    TrainOptimizer optimizer{.learning_rate = 5e-6, .beta2 = 0.999, .weight_decay = 0.01};
    int64_t warmup = 0;  // steps; the learning rate is constant afterwards
    RlGeneration generation;
    RlTask task;
    int64_t validation_every = 0, validation_prompts = 256;  // steps between validations, 0: none
    int64_t validation_answers = 1;                          // per prompt: k of pass@k, avg@k, cons@k; at most 20
    TrainSaving saving;
    double must_save_by = 0;              // seconds since the start of the program (run/deadline.h); 0: no limit
    Format export_format = Format::none;  // format of a second export in codes (rl/policy_export.h)
};

// Returns the keys of the file with their defaults and help texts. docs/reference/rl-keys.md has the table.
std::vector<KeyText> rl_keys();
// Errors name file, line and key.
Result<RlConfig> read_rl_config(const std::filesystem::path& file, const std::vector<KeyOverride>& overrides = {});
Result<RlConfig> parse_rl_config(std::string_view yaml, std::string_view name,
                                 const std::vector<KeyOverride>& overrides = {});
// Returns an error for keys that exclude or require each other.
Status check(const RlConfig& config);
// Returns the values that determine the bits of a run. A resumed run must agree with its checkpoint in them.
Json rl_identity(const RlConfig& config);
// Returns rl_identity() of a stored config, whatever version of nibble wrote it. Missing keys have their defaults.
// Error: a key or value that this version does not know.
Result<Json> stored_rl_identity(const Json& stored);

}  // namespace nibble
