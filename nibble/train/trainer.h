// Training as a library: parameters, a model that reads them, the loss of batches, its gradient, and an optimizer. It
// does not access files. `nibble train` and reinforcement learning use it.
//
// The rows of a step are computed one after another, each forward and backward, and their gradients are added in the
// order of GradientTree. So results depend on the rows of a step and their order, not on how batches cut them and not
// on threads. The forward pass keeps the inputs of all blocks. The backward pass recomputes a block's intermediates by
// the same operations, so with the same bits.
//
// Arithmetic: the forward pass is the engine's (Compute::bf16 rounds after every operator; the recipe `fp32` does not).
// The backward pass is in FP32 over the weights and activations of the forward pass, except for products that the
// recipe quantizes.
#pragma once

#include "base/trace.h"
#include "model/cpu/model.h"
#include "model/parameters.h"
#include "train/gradient_tree.h"
#include "train/norm_history.h"
#include "train/optimizer.h"
#include "train/train_config.h"
#include "train/train_engine.h"
#include "train/train_ranks.h"

#include <memory>
#include <span>
#include <vector>

namespace nibble {

struct TrainerOptions {
    TrainPrecision precision;
    TrainOptimizer optimizer;
    // skips a step whose loss or gradient is not finite; false: that is an error, and nothing is changed
    bool skip_nonfinite = false;
    uint64_t seed = 1;
    std::string kernels;  // forces an entry of the kernel tables
    // If set, the loss of step(batches) is (1 - c) KL(teacher || model) + c cross-entropy per label (model/loss.h).
    std::shared_ptr<const Model> teacher;
    float cross_entropy = 0;  // c
    // The labels' log-probabilities are those of this sampling distribution (model/loss.h). It cannot be combined with
    // a teacher. Its temperature must not be 0.
    SamplingParams sampling;
    TrainLora lora;
    // KV cache of rollouts, also applied in the training forward pass; cannot be combined with adapters
    TrainCache cache;
    Trace* trace = nullptr;  // must outlive the trainer
    // Ranks that share the rows of a step. They must outlive the trainer. Null: a single process.
    RankGroup* ranks = nullptr;
};

class Trainer : public TrainEngine {
public:
    // The pool must outlive the trainer.
    static Result<std::unique_ptr<Trainer>> create(std::shared_ptr<Parameters> parameters,
                                                   const TrainerOptions& options, ThreadPool& pool);

    // Trains the adapters of options.lora over the frozen weights of `base` (train/lora.h), which may be quantized.
    // Only adapters are parameters. The precision must be bf16 or fp32.
    static Result<std::unique_ptr<Trainer>> create_adapters(std::shared_ptr<const Checkpoint> base,
                                                            const TrainerOptions& options, ThreadPool& pool);

    void begin(int64_t step, int64_t steps) override;
    Status enter_phase(int64_t step, int64_t steps) override;
    Result<TrainStep> step(std::span<const TrainBatch> batches, double learning_rate) override;
    Result<TrainStep> step(std::span<const TrainBatch> batches, const RowObjective& objective,
                           double learning_rate) override;
    // The parts of a step: backward() computes loss and gradient (gradients() is valid until the next call), update()
    // changes the parameters.
    Result<TrainStep> backward(std::span<const TrainBatch> batches, const RowObjective& objective);
    Result<TrainStep> backward(std::span<const TrainBatch> batches);
    Status update(TrainStep& step, double learning_rate);

    Status log_probs(const TrainBatch& batch, std::span<float> out) override;
    Status row_log_probs(std::span<const TrainBatch* const> rows, const OfRow& each) override;

    // The model that reads the current parameters, for generation, logits and exports.
    const Model& model() const { return *model_; }
    Parameters& parameters() { return *parameters_; }
    const GradientTree& gradients() const { return gradients_; }
    Optimizer& optimizer() { return optimizer_; }
    // State of a recipe between steps (scale histories, input directions), for checkpoints.
    StepProducts& products() { return *products_; }
    const StepProducts& products() const { return *products_; }
    // Call it after other code changed the masters (a checkpoint was read).
    Status renew();

    const ModelConfig& config() const override { return model_->config(); }
    double flops(int64_t seq) const override;
    const Parameters& parameters() const override { return *parameters_; }
    Result<std::shared_ptr<const Checkpoint>> trained() override;
    Result<Format> codes_format(int64_t steps) override;
    Result<std::unique_ptr<TrainedCodes>> trained_codes(int64_t steps) override;
    Result<std::shared_ptr<const LanguageModel>> serving() override;
    Result<TrainState> state() override;
    Status sync() override;
    Result<bool> any(bool mine) override;
    OptimizerLayout state_layout(size_t id) const override { return optimizer_.layout(id); }
    int64_t recipe_size() const override {
        return std::ssize(products_->state()) + (cache_ ? std::ssize(cache_->state()) : 0);
    }
    PrecisionRecipe& recipe() override { return *products_; }
    const PrecisionRecipe& recipe() const override { return *products_; }
    CacheScales* cache_scales() override { return cache_.get(); }
    bool calibrates() const override { return cache_ || products_->calibrates(); }
    Status calibrate(std::span<const TrainBatch> batches) override;
    Status set_cache_scales(std::span<const float> state) override;
    Status set_state(const StoredTrainState& state) override;
    std::vector<std::string> notes() const override;
    double memory_gib() const override;

private:
    Trainer(std::shared_ptr<Parameters> parameters, std::shared_ptr<const Checkpoint> base,
            const TrainerOptions& options, Model model, ThreadPool& pool);
    struct Row;
    std::vector<float> recipe_state() const;
    Status forward_row(const Row& row, bool keep);
    Status own_log_probs(const TrainBatch& batch, int64_t row, std::span<float> out);
    Status backward_row(const Row& row, std::span<const float> slopes, std::span<float> log_probs);
    Status backward_blocks(const Row& row, std::vector<float>& dx);
    Status distil_row(const Row& row, std::span<const float> weights, std::span<float> losses);
    Status share_masters();
    Status share_seen();
    Status collect_states(TrainState& state);

    std::shared_ptr<Parameters> parameters_;
    std::shared_ptr<const Checkpoint> base_;  // the frozen weights if the parameters are adapters
    TrainerOptions options_;
    TrainRanks ranks_;
    ThreadPool& pool_;
    std::unique_ptr<Model> model_;
    std::shared_ptr<CacheScales> cache_;  // null: no FP8 cache
    std::unique_ptr<StepProducts> products_;
    GradientTree gradients_;
    Optimizer optimizer_;
    NormHistory norms_;
    std::vector<std::vector<float>> inputs_;  // inputs of every block, then the last block's output; [seq, hidden]
    int64_t step_ = 0, steps_ = 0;
};

}  // namespace nibble
