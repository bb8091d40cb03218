// The configuration of an RL run as one value. Keys and defaults are NeMo RL's where they mean the same.
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
    int64_t most_tokens = 0;                       // of a turn; 0: what the length of a sequence leaves
    double temperature = 1;                        // of the distribution that is sampled and learned; above 0
    double top_p = 1;                              // 1: off
    int64_t top_k = 0;                             // 0: off
    std::optional<double> validation_temperature;  // 0: the likeliest token; none: as above
    std::optional<double> validation_top_p;        // none: as above
    std::vector<int32_t> stop_tokens;              // beside the model's own end tokens
    std::vector<std::string> stop_texts;
    std::optional<TrainPrecision> precision;  // none: that of the updates, in the same weights
    TrainCache cache;                         // mirrored where `precision` is none

    SamplingParams sampling() const {
        return {.temperature = static_cast<float>(temperature), .top_k = top_k, .top_p = static_cast<float>(top_p)};
    }
};

// Rollouts that may go on in the next steps, with their weights.
struct RlAsync {
    int64_t most_age = 1;           // steps; answers that began earlier are dropped
    int64_t prompts_in_flight = 0;  // 0: half as many again as a step trains
    int64_t round_tokens = 256;     // that an answer gets before it is asked again whether enough are whole
};

struct RlTask {
    TaskKind kind = TaskKind::sum;  // questions made on the spot
    int difficulty = 1;
    std::filesystem::path train, validation;  // instead: files of JSON lines (rl/question_rows.h); empty: none
    std::string input_key = "input", output_key = "output";
    AnswerRewardOptions reward;        // of their rows
    std::string prompt = "{}";         // the question takes the place of {}
    bool chat = true;                  // the prompt is a user's message of the model's chat template
    std::vector<std::string> command;  // an environment that judges; empty: the task's own rule
    int64_t processes = 1;
    double timeout_seconds = 30;
};

struct RlConfig {
    std::filesystem::path model, output;
    bool resume = false;
    uint64_t seed = 42;
    int64_t prompts = 32, generations = 16;  // of a step; answers of a prompt
    int64_t steps = 1'000'000;
    int64_t train_batch = 0;  // answers of an update; 0: all of the step
    int64_t length = 512;     // tokens of a prompt and its answer, all turns
    int64_t most_turns = 1;   // of an answer
    int64_t row_tokens =
        0;  // answers are trained in rows of up to so many tokens; 0: one a row on a CPU, 16,384 on a GPU

    AdvantageOptions advantage;
    bool dynamic_sampling = false;  // groups whose rewards are all equal are replaced
    int64_t most_batches = 10;      // of a step with dynamic sampling
    double batch_multiplier = 1;    // of dynamic sampling: a batch has so many times the step's prompts, cut down
    int64_t batch_prompts() const { return static_cast<int64_t>(static_cast<double>(prompts) * batch_multiplier); }
    std::optional<RlAsync> async;               // none: a step's rollouts end before its update
    std::optional<double> seq_error_threshold;  // of seq_mult_prob_error(): answers beyond it count nowhere in the loss
    bool overlong_filtering = false;            // an answer that was cut off counts nowhere in the loss
    std::optional<RewardScaling> scaling;
    std::optional<RewardShaping> shaping;
    PolicyLossOptions loss;

    TrainPrecision precision;
    TrainOptimizer optimizer{.learning_rate = 5e-6, .beta2 = 0.999, .weight_decay = 0.01};
    int64_t warmup = 0;  // steps; then the learning rate is constant
    RlGeneration generation;
    RlTask task;
    int64_t validation_every = 0, validation_prompts = 256;  // steps, 0: none
    int64_t validation_answers = 1;                          // to each prompt: k of pass@k, avg@k, cons@k; up to 20
    TrainSaving saving;
    double must_save_by = 0;              // seconds after the start of the program (run/deadline.h); 0: no limit
    Format export_format = Format::none;  // of a second export, in codes (rl/policy_export.h)
};

// The keys of the file, with their defaults and help; docs/rl.md has the table.
std::vector<KeyText> rl_keys();
// Errors name file, line and key.
Result<RlConfig> read_rl_config(const std::filesystem::path& file, const std::vector<KeyOverride>& overrides = {});
Result<RlConfig> parse_rl_config(std::string_view yaml, std::string_view name,
                                 const std::vector<KeyOverride>& overrides = {});
// Keys that exclude or need each other.
Status check(const RlConfig& config);
// The values that decide the bits of a run: what a resumed run must have in common with the checkpoint.
Json rl_identity(const RlConfig& config);
// rl_identity() of the config that a run stored, whatever version of nibble wrote it: keys that it lacks have their
// defaults. Error: a key or value that this version does not know.
Result<Json> stored_rl_identity(const Json& stored);

}  // namespace nibble
