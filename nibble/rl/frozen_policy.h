// The reference policy of the KL term on a CPU: a separate frozen model.
#pragma once

#include "data/train_batch.h"
#include "model/cpu/model.h"
#include "rl/reference_policy.h"
#include "train/cache_scales.h"
#include "train/host_recipe.h"

#include <memory>
#include <span>
#include <string>

namespace nibble {

class FrozenPolicy : public ReferencePolicy {
public:
    // Copies the checkpoint's tensors in the trainer's types. Log-probabilities are those after division by the
    // temperature, without top-k or top-p. `pool` and `ranks` must outlive the policy. ranks: the processes that share
    // the rows of a pass; null: this process computes all rows.
    static Result<std::shared_ptr<FrozenPolicy>> create(const Checkpoint& from, const TrainPrecision& precision,
                                                        const std::string& kernels, ThreadPool& pool,
                                                        float temperature = 1, const TrainCache& cache = {},
                                                        RankGroup* ranks = nullptr);
    Status calibrate(std::span<const TrainBatch> rows) override;
    Status log_probs(std::span<const TrainBatch* const> rows, const OfRow& each) override;

private:
    Result<std::vector<float>> run(const TrainBatch& row, Observer* observer) const;
    FrozenPolicy(std::shared_ptr<Parameters> parameters, Model model, float temperature)
        : parameters_(std::move(parameters)), model_(std::move(model)), temperature_(temperature) {}

    std::shared_ptr<Parameters> parameters_;
    Model model_;
    std::shared_ptr<CacheScales> cache_;  // null: no FP8 KV cache
    float temperature_;
    RankGroup* ranks_ = nullptr;
    std::unique_ptr<HostRecipe> products_;
};

}  // namespace nibble
