// The report of one step of reinforcement learning.
#pragma once

#include "rl/policy_loss.h"
#include "rl/rl_samples.h"
#include "rl/rollout_pool.h"
#include "train/train_engine.h"

#include <optional>
#include <string>
#include <vector>

namespace nibble {

// Effect of grpo.seq_logprob_error_threshold. PolicyMetrics describes the remaining answers.
struct RlMasked {
    double most = 0, mean = 0, least = 0;  // seq_mult_prob_error() over all answers before masking
    int64_t answers = 0, right = 0;        // excluded answers; and those of them with reward 1
};

struct RlStep {
    int64_t step = 0;
    bool stopped = false;  // stopped by request during the rollouts: nothing was changed, and no other field is set
    // Statistics of the answers in the loss.
    int64_t prompts = 0, answers = 0, failures = 0;
    double reward = 0, shaped_reward = 0;  // means
    double accuracy = 0;                   // share of answers with reward 1
    int64_t equal_groups = 0;              // prompts whose judged answers all have the same reward, which teach nothing
    int64_t sampling_batches = 1;          // batches that dynamic sampling generated
    double mean_length = 0, cut_share = 0;  // tokens written by the model; share of answers cut off at a limit
    double mean_turns = 0;
    double turn_limit_share = 0;  // share of answers that the environment would have continued
    int64_t longest = 0, generated_tokens = 0;
    // Set only with asynchronous rollouts.
    std::optional<int64_t> unfinished;  // answers kept for the next step, including whole answers of unfinished prompts
    int64_t dropped = 0;                // answers that became too old
    double mean_age = 0;                // mean number of steps since the answers of the prompts began
    PolicyMetrics metrics;  // metrics of all updates: sums, but `loss` and `kl_penalty` are means over updates
    std::optional<double> kl_in_reward;  // mean estimate over the generated tokens, if the KL term is in the reward
    std::optional<RlMasked> masked;      // set if answers are masked by their error
    TrainStep update;                    // the last update
    int64_t updates = 0;
    std::optional<CacheScales::Use> cache;  // use of the KV cache's FP8 scales in the last update
    double generate_seconds = 0, reward_seconds = 0, train_seconds = 0;
    // handover: publishing updated weights, and converting them for rollouts in another precision. recalibrate:
    // computing FP8 cache scales from the maxima of the passes.
    double handover_seconds = 0, recalibrate_seconds = 0;
    std::vector<RankWork> ranks;               // work of each rank in the rollouts; empty: a single process
    std::vector<std::string> failure_reasons;  // at most a few
    std::vector<RlSample> samples;             // at most PolicyTrainerOptions::samples
};

}  // namespace nibble
