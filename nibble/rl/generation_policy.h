// Rollouts in another precision than the updates, as in RL systems with two engines. It serves as a control experiment.
// The generator reads the trainer's published parameters and converts them to weights of its own after every update.
// Its log-probabilities differ from those of training; mismatch_tokens counts the tokens.
#pragma once

#include "model/cpu/model.h"
#include "train/host_recipe.h"
#include "train/train_engine.h"
#include "train/trained_codes.h"

#include <memory>
#include <string>

namespace nibble {

class GenerationPolicy {
public:
    // `parameters` belong to `trainer`, whose forward passes also give the FP8 scales of the cache
    // (TrainCache::mirrored is false). All arguments must outlive the policy.
    static Result<std::shared_ptr<GenerationPolicy>> create(std::shared_ptr<Parameters> parameters,
                                                            TrainEngine& trainer, const TrainPrecision& precision,
                                                            const TrainCache& cache, const std::string& kernels,
                                                            ThreadPool& pool);
    // Call it after the parameters or the scales of the cache changed.
    Status renew() { return model_->renew(); }
    std::shared_ptr<const LanguageModel> model() const { return model_; }
    // The format and the codes of its forward products with the present weights (train/trained_codes.h).
    Result<Format> codes_format() const { return TrainedCodes::format_of(*products_); }
    Result<std::unique_ptr<TrainedCodes>> codes(ThreadPool& pool) const {
        return TrainedCodes::create(parameters_, *products_, pool);
    }
    bool sees_neighbours() const { return products_->sees_neighbours(); }

private:
    explicit GenerationPolicy(std::shared_ptr<Parameters> parameters) : parameters_(std::move(parameters)) {}
    std::shared_ptr<Parameters> parameters_;
    std::shared_ptr<Model> model_;
    std::unique_ptr<HostRecipe> products_;
};

}  // namespace nibble
