// Training as a library: parameters, a model that reads them, the loss of batches, its gradient, an optimizer. No files.
// `nibble train` and reinforcement learning call it.
//
// Rows of a step are computed one after the other, each forward and back on its own, and their gradients are added in
// GradientTree's order: results depend on the rows of a step and their order, not on how batches cut them nor on
// threads. Of a row's forward pass the inputs of all blocks are kept; a block's own intermediates are computed again on
// the way back, by the same operations, so to the same bits.
//
// Arithmetic: forward is the engine's (Compute::bf16 rounds after every operator; `fp32` does not). The way back is in
// FP32 over the weights and activations of the forward pass, whatever the recipe's products quantize.
#pragma once

#include "model/cpu/model.h"
#include "model/parameters.h"
#include "train/adamw.h"
#include "train/gradient_tree.h"
#include "train/train_batch.h"
#include "train/train_config.h"
#include "train/train_products.h"

#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace nibble {

struct TrainerOptions {
    TrainPrecision precision;
    TrainOptimizer optimizer;
    bool skip_nonfinite = false;  // else a loss or gradient that is not finite is an error, and nothing was changed
    uint64_t seed = 1;
    std::string kernels;  // forces an entry of the kernel tables
};

struct TrainStep {
    double loss = 0;     // the objective's; of cross-entropy the weighted mean
    double weight = 0;   // cross-entropy: the sum of the labels' weights
    int64_t tokens = 0;  // of all rows
    double gradient_norm = 0;
    double learning_rate = 0;
    float clip = 1;        // that the gradient was multiplied with
    bool skipped = false;  // not finite: the parameters are as before
};

// What one row wants: from the log-probabilities of its labels (0 where the label is -1) the slope of the step's loss
// with respect to each of them, and the row's part of the loss. `row` counts over the batches of the step.
using RowObjective =
    std::function<Status(int64_t row, std::span<const float> log_probs, std::span<float> slopes, double& loss)>;

class Trainer {
public:
    // The pool outlives the trainer.
    static Result<std::unique_ptr<Trainer>> create(std::shared_ptr<Parameters> parameters,
                                                   const TrainerOptions& options, ThreadPool& pool);

    // Adapters over the frozen weights of `base` (train/lora.h), which may be quantized: they alone are parameters.
    // Precision bf16 or fp32.
    static Result<std::unique_ptr<Trainer>> create(std::shared_ptr<const Checkpoint> base, const TrainLora& lora,
                                                   const TrainerOptions& options, ThreadPool& pool);

    // Which step comes next, of how many: keys random numbers and late phases of a recipe. step() counts on by itself.
    void begin(int64_t step, int64_t steps);
    // One step of the optimizer on the mean cross-entropy of all labels, weighted. Error: no label has a weight.
    Result<TrainStep> step(std::span<const TrainBatch> batches, double learning_rate);
    // The same for any function of the labels' log-probabilities.
    Result<TrainStep> step(std::span<const TrainBatch> batches, const RowObjective& objective, double learning_rate);
    // The parts of a step: loss and gradient (gradients() until the next call), then the update.
    Result<TrainStep> backward(std::span<const TrainBatch> batches, const RowObjective& objective);
    Result<TrainStep> backward(std::span<const TrainBatch> batches);
    Status update(TrainStep& step, double learning_rate);

    // Log-probabilities of all labels of a batch, [rows, seq], 0 where there is none; forward only.
    Status log_probs(const TrainBatch& batch, std::span<float> out);
    // The weighted mean of -log p.
    Result<double> evaluate(std::span<const TrainBatch> batches);

    // The model that reads the parameters as they are now: generation, logits, exports of its parameters.
    const Model& model() const { return *model_; }
    Parameters& parameters() { return *parameters_; }
    const GradientTree& gradients() const { return gradients_; }
    AdamW& optimizer() { return optimizer_; }
    // What a recipe keeps from step to step (scale histories, input directions), for checkpoints.
    StepProducts& products() { return *products_; }
    const StepProducts& products() const { return *products_; }
    // After masters were changed by someone else (a checkpoint was read).
    Status renew();

private:
    Trainer(std::shared_ptr<Parameters> parameters, const TrainerOptions& options, Model model, bool frozen,
            ThreadPool& pool);
    struct Row;
    Status forward_row(const Row& row, bool keep);
    Status backward_row(const Row& row, std::span<const float> slopes, std::span<float> log_probs);

    std::shared_ptr<Parameters> parameters_;
    bool frozen_;  // the model's weights are not the parameters
    TrainerOptions options_;
    ThreadPool& pool_;
    std::unique_ptr<Model> model_;
    std::unique_ptr<StepProducts> products_;
    GradientTree gradients_;
    AdamW optimizer_;
    std::vector<std::vector<float>> inputs_;  // of every block, then the last block's output; [seq, hidden]
    int64_t step_ = 0, steps_ = 0;
};

}  // namespace nibble
