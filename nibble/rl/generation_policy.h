// Rollouts in another precision than the updates: the control that RL systems of two engines are. The generator reads
// the trainer's published parameters, in weights of its own that are made anew after every update. What it says of a
// token is not what training says; mismatch_tokens counts it.
#pragma once

#include "model/cpu/model.h"
#include "train/train_engine.h"
#include "train/train_products.h"
#include "train/trained_codes.h"

#include <memory>
#include <string>

namespace nibble {

class GenerationPolicy {
public:
    // `parameters` are those of `trainer`; the cache's FP8 scales come from its forward passes (TrainCache::mirrored is
    // false). All outlive the policy.
    static Result<std::shared_ptr<GenerationPolicy>> create(std::shared_ptr<Parameters> parameters,
                                                            TrainEngine& trainer, const TrainPrecision& precision,
                                                            const TrainCache& cache, const std::string& kernels,
                                                            ThreadPool& pool);
    // After the parameters or the scales of the cache changed.
    Status renew() { return model_->renew(); }
    std::shared_ptr<const LanguageModel> model() const { return model_; }
    // Of its forward products as they are now: TrainedCodes.
    Result<Format> codes_format() const { return TrainedCodes::format_of(*products_); }
    Result<std::unique_ptr<TrainedCodes>> codes(ThreadPool& pool) const {
        return TrainedCodes::create(parameters_, *products_, pool);
    }
    bool sees_neighbours() const { return products_->sees_neighbours(); }

private:
    explicit GenerationPolicy(std::shared_ptr<Parameters> parameters) : parameters_(std::move(parameters)) {}
    std::shared_ptr<Parameters> parameters_;
    std::shared_ptr<Model> model_;
    std::unique_ptr<TrainProducts> products_;
};

}  // namespace nibble
