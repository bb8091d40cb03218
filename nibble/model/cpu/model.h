// A model on the CPU: config, weights and forward pass. One forward pass serves calibration, evaluation, generation,
// rollouts and training; backward() (backward.h) uses the same blocks.
//
// Values between operators are FP32 arrays. With Compute::bf16 every operator rounds its result to BF16, as a BF16
// model does; with f32 nothing is rounded. The bits of a row depend only on the weights and on the tokens before it:
// not on other rows, chunking, thread count or instruction set (docs/architecture.md 4).
#pragma once

#include "architecture/model_config.h"
#include "base/philox.h"
#include "checkpoint/checkpoint.h"
#include "kernels/quantize.h"
#include "model/batch.h"
#include "model/cpu/block.h"
#include "model/cpu/predictor.h"
#include "model/language_model.h"
#include "model/sequence.h"
#include "model/weight_source.h"

#include <memory>
#include <string>

namespace nibble {

struct ModelOptions : WeightOptions {
    std::string kernels;  // name of the entry to use in all kernel tables; empty: the best of this CPU
    SumOrder sums = SumOrder::lanes;
    int64_t most_tokens = 0;        // largest length of a sequence, for choose_rope_factors(); 0: the model's context
    Communicator* ranks = nullptr;  // set if several ranks run the model; must outlive it
};

// Returns the config of a checkpoint, also when tensor names have a prefix (the text part of a multimodal model).
// Errors: an unknown architecture, a missing or bad key.
Result<ModelConfig> model_config(const Checkpoint& checkpoint);

// The last norm and lm_head.
class Head {
public:
    static Result<Head> load(const ModelConfig& config, WeightSource& weights);
    // Writes y [rows, hidden]: the last norm of x [rows, hidden].
    void normalize(const float* x, int64_t rows, float* y, const Workspace& work) const;
    // Writes logits [rows, vocab] from x [rows, ModelConfig::width()]: last norm, then lm_head.
    Status forward(const float* x, int64_t rows, float* logits, Workspace& work, Observer* observer) const;
    // Writes logits [rows, vocab] from rows that are normalized already.
    Status project(const float* normed, int64_t rows, float* logits, Workspace& work, Observer* observer) const;
    // The labels of the log-likelihood of each row.
    struct Labels {
        std::vector<int32_t> given;  // [rows], -1: no label
        std::optional<PhiloxStream>
            sampled;  // if set, labels are drawn from the row's own distribution instead: draw `row` of the stream
        float scale = 1.0f;  // factor of the gradient
    };
    // Returns the sum of -log p(label) over the rows and writes its gradient dx [rows, hidden]. Runs in pieces of rows;
    // the observer sees each piece with its row numbers. The gradient of a tied head goes to "lm_head.weight".
    Result<double> backward(const float* x, int64_t rows, const Labels& labels, float* dx, Workspace& work,
                            Observer* observer, GradientSink* sink) const;
    const Linear& linear() const { return linear_; }
    std::span<const float> norm() const { return norm_.weight; }  // weights as they are multiplied
    const Norm& last_norm() const { return norm_; }
    const std::string& norm_name() const { return norm_name_; }
    float logit_scale() const { return logit_scale_; }

private:
    void scale_logits(float* logits, int64_t rows, const Workspace& work, bool bf16) const;

    Linear linear_;            // named "lm_head", also when tied
    HyperConnection streams_;  // may be empty
    Norm norm_;
    std::string norm_name_;
    float logit_scale_ = 1.0f, logit_cap_ = 0;
};

struct ModelParts {
    Embedding embedding;
    std::vector<Block> blocks;
    Head head;
    std::optional<Predictor> predictor;  // set if WeightOptions::prediction is true
};
// Loads all parts. Checks the presence and shape of every tensor against the config, then reads in `mode`.
Result<ModelParts> load_parts(const ModelConfig& config, const Checkpoint& checkpoint, const WeightOptions& options,
                              ThreadPool& pool, WeightSource::Mode mode);

class Model : public LanguageModel {
public:
    // Loads the model. The model keeps the checkpoint open; the pool must outlive the model.
    static Result<Model> load(std::shared_ptr<const Checkpoint> checkpoint, const ModelOptions& options,
                              ThreadPool& pool);

    // Loads the weights again after the owner of the checkpoint changed them (model/parameters.h). Pages and states of
    // existing sequences still stem from the old weights.
    Status renew();
    // Loads the weights of another checkpoint of the same model, and keeps it open. After an error the old weights
    // stay. Error: a tensor is missing or has another shape.
    Status replace(std::shared_ptr<const Checkpoint> checkpoint);
    // Frees the weights. Until renew() or replace(), the model may not run.
    void drop_weights();

    const ModelConfig& config() const override { return *config_; }
    std::span<const Block> blocks() const { return parts_.blocks; }
    const Embedding& embedding() const { return parts_.embedding; }
    const Head& head() const { return parts_.head; }
    const Predictor* predictor() const { return parts_.predictor ? &*parts_.predictor : nullptr; }

    Result<std::unique_ptr<KvPool>> make_pool(int64_t tokens, int64_t sequences) const override;
    std::vector<StateLayout> states() const override;
    Result<int64_t> free_bytes(int64_t rows, int64_t wanted) const override;
    Status forward(const Batch& batch, std::span<float> logits, Observer* observer = nullptr) const override;
    Status evaluate(const Batch& batch, std::span<float> logits) const override;
    bool predicts() const override { return parts_.predictor.has_value(); }
    Status predict(const Batch& batch, std::span<const int32_t> rows, bool again,
                   std::span<const TokenRequest> requests, std::span<ChosenToken> chosen) const override;
    Workspace& workspace() const override { return *work_; }
    std::string kernels() const override { return std::string(work_->matmul->name); }

private:
    Model() = default;
    // Runs the batch. With `look`, NaN or infinite logits are an error and sequences do not advance.
    Status run(const Batch& batch, std::span<float> logits, Observer* observer, bool look) const;
    std::shared_ptr<const Checkpoint> checkpoint_;
    WeightOptions options_;
    std::unique_ptr<ModelConfig> config_;
    ModelParts parts_;
    std::unique_ptr<Workspace> work_;
    // With a predictor: rows of the last batch after the last norm, and the outputs of the last predict().
    mutable std::vector<float> hidden_, predicted_;
};

// Loads one block, checked and packed. Calibration streams a model block by block.
Result<Block> load_block(const Checkpoint& checkpoint, const ModelConfig& config, size_t index,
                         const WeightOptions& options, ThreadPool& pool);

}  // namespace nibble
