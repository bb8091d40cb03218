// The reference of the KL term: the model at the start of the run, computed in the trainer's precision. Before the
// first update its log-probabilities equal the trainer's bit for bit.
#pragma once

#include "data/train_batch.h"
#include "train/device_train_engine.h"

#include <span>

namespace nibble {

class ReferencePolicy {
public:
    virtual ~ReferencePolicy() = default;
    // Computes the reference's own scales of an FP8 cache and of stored inputs from `rows`, the first prompts of the
    // run.
    virtual Status calibrate(std::span<const TrainBatch>) { return Ok{}; }
    // Like TrainEngine::row_log_probs(), for the reference.
    virtual Status log_probs(std::span<const TrainBatch* const> rows, const OfRow& each) = 0;
};

// On a GPU the trainer keeps the initial weights in addition to its own (DeviceTrainerOptions::reference). It must
// outlive this.
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
