// The position of an RL run in its prompts, stored where training runs store their position in the data.
#pragma once

#include "data/batch_source.h"
#include "rl/policy_trainer.h"

namespace nibble {

// Adapts PolicyTrainer::place() to the interface that checkpoints use.
class PromptPlace : public BatchSource {
public:
    explicit PromptPlace(PolicyTrainer& policy) : policy_(policy) {}
    Result<TrainBatch> next(int64_t) override { return fail("reinforcement learning creates its rows itself"); }
    Json place() const override { return policy_.place(); }
    Status set_place(const Json& place) override { return policy_.set_place(place); }

private:
    PolicyTrainer& policy_;
};

}  // namespace nibble
