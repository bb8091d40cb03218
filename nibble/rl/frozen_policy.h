// The reference of the KL term: the model that a run begins with, as the trainer of that precision computes it. Before
// the first update its log-probabilities are the trainer's, bit for bit.
#pragma once

#include "model/cpu/model.h"
#include "train/cache_scales.h"
#include "train/train_batch.h"
#include "train/train_products.h"

#include <memory>
#include <span>
#include <string>

namespace nibble {

class FrozenPolicy {
public:
    // A copy of the checkpoint's tensors, as a trainer reads them, that divides logits by the temperature and filters
    // none. The pool
    // outlives the policy.
    static Result<std::shared_ptr<FrozenPolicy>> create(const Checkpoint& from, const TrainPrecision& precision,
                                                        const std::string& kernels, ThreadPool& pool,
                                                        float temperature = 1, const TrainCache& cache = {});
    // An FP8 cache has scales of its own, of these rows: the first prompts of the run.
    Status calibrate_cache(std::span<const TrainBatch> rows);
    // log p of the labels of a one-row batch, 0 where there is no label. out [seq].
    Status log_probs(const TrainBatch& row, std::span<float> out) const;

private:
    Result<std::vector<float>> run(const TrainBatch& row, Observer* observer) const;
    FrozenPolicy(std::shared_ptr<Parameters> parameters, Model model, float temperature)
        : parameters_(std::move(parameters)), model_(std::move(model)), temperature_(temperature) {}

    std::shared_ptr<Parameters> parameters_;
    Model model_;
    std::shared_ptr<CacheScales> cache_;  // null: no FP8 cache
    float temperature_;
    std::unique_ptr<TrainProducts> products_;
};

}  // namespace nibble
