// A few answers of a step, with the log-probabilities of every token by engine and trainer, for display.
#pragma once

#include "base/json.h"
#include "rl/rollout.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

inline constexpr std::string_view samples_name = "samples.json";  // in the run's folder; describes the last step

struct RlSample {
    size_t rollout = 0;  // index in the batch
    std::string question, expected, failure;
    std::optional<double> reward;
    double shaped = 0, advantage = 0;
    bool cut = false;
    std::vector<int32_t> tokens;
    std::vector<uint8_t> written;  // 1: written by the model; 0: read
    std::vector<uint8_t> stale;    // 1: generated with the weights of an earlier step
    std::vector<float> generated;  // log-probability at generation
    std::vector<float> previous;   // log-probability by the trainer before the first update of the step
    std::vector<float> current;    // log-probability by the trainer in the last update that included the answer
};

// Chooses at most `most` rollouts from the best to the worst reward, evenly spaced. Rollouts without a reward come
// last.
std::vector<RlSample> choose_samples(const RolloutBatch& batch, size_t most, int64_t step);

// Returns the content of the samples file: {"step", "samples": [{"question", "expected", "reward", "shaped_reward",
// "advantage", "cut", "failure", "tokens"}]}. A token is {"text", "written"}. Tokens that the model wrote also have
// "generated", "previous", "current" (log-probabilities), "same" (whether the bits of the first two agree) and "stale".
// Without a tokenizer the text is the token's id.
std::string samples_text(int64_t step, const std::vector<RlSample>& samples, const std::optional<Tokenizer>& tokenizer);

}  // namespace nibble
