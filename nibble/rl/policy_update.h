// Learns from the rollouts of one step: rows of training, the log-probabilities of the policy and of the reference
// before the step, and the updates.
#pragma once

#include "rl/reference_policy.h"
#include "rl/rl_config.h"
#include "rl/rl_step.h"
#include "rl/rollout_rows.h"

#include <vector>

namespace nibble {

struct RowPacking {
    int64_t row_tokens = 0;  // limit of tokens for rows of several answers; 0: one answer in a row
    bool even_rows = false;  // rows of about one length, as many as a power of two allows
};

class PolicyUpdate {
public:
    // All outlive it. `reference` may be null where config.loss.kl_penalty is 0.
    PolicyUpdate(const RlConfig& config, TrainEngine& trainer, ReferencePolicy* reference, const RowPacking& packing,
                 RolloutBatch& batch, RlStep& step)
        : config_(config), trainer_(trainer), reference_policy_(reference), batch_(batch), step_(step) {
        pack(packing);
    }

    // Computes what the loss needs from before the first update, and leaves answers out by their error. The weights
    // stay.
    Status prepare();
    // Makes the updates. After an error the weights are those of the last whole update.
    Status learn();

private:
    using Rows = std::vector<RolloutRow>;
    using TokenValues = std::vector<std::vector<float>>;  // [rollout][token]

    void pack(const RowPacking& packing);
    bool takes_off_kl() const { return config_.loss.kl_in_reward && config_.loss.kl_penalty > 0; }
    double weight(const Rollout& rollout) const;
    void mask_by_error();
    Status take_off_kl();
    BatchCounts counts_of(const Rows& rows) const;
    Status add_answer(const RolloutRow::Part& part, const BatchCounts& counts, std::span<const float> log_probs,
                      std::span<float> slopes, PolicyMetrics& metrics);
    Status update(const Rows& rows, bool last, double rate);

    const RlConfig& config_;
    TrainEngine& trainer_;
    ReferencePolicy* reference_policy_;
    RolloutBatch& batch_;
    RlStep& step_;
    std::vector<Rows> updates_;
    bool asks_ = false;  // previous_ is needed: what the trainer computes before the first update
    TokenValues previous_, reference_;
};

}  // namespace nibble
