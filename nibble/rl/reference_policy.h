// The reference of the KL term: the model that a run begins with, as the trainer of that precision computes it. Before
// the first update its log-probabilities are the trainer's, bit for bit.
#pragma once

#include "data/train_batch.h"
#include "train/device_train_engine.h"

#include <span>

namespace nibble {

class ReferencePolicy {
public:
    virtual ~ReferencePolicy() = default;
    // An FP8 cache and stored inputs have scales of its own, of these rows: the first prompts of the run.
    virtual Status calibrate(std::span<const TrainBatch>) { return Ok{}; }
    // TrainEngine::row_log_probs() of the reference.
    virtual Status log_probs(std::span<const TrainBatch* const> rows, const OfRow& each) = 0;
};

// On a GPU the trainer keeps the first weights beside its own (DeviceTrainerOptions::reference), and outlives this.
class DeviceReference : public ReferencePolicy {
public:
    explicit DeviceReference(DeviceTrainEngine& trainer) : trainer_(trainer) {}
    Status log_probs(std::span<const TrainBatch* const> rows, const OfRow& each) override {
        return trainer_.reference_log_probs(rows, each);
    }

private:
    DeviceTrainEngine& trainer_;
};

}  // namespace nibble
