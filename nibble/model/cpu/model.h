// A model that runs: config, weights, forward. One forward pass serves calibration, evaluation, generation, rollouts
// and training; backward walks the same blocks.
//
// Values between operators are FP32 arrays; with Compute::bf16 every operator rounds its result to BF16 (as a BF16
// model does), with f32 nothing is rounded. Both are exact functions of weights and of the tokens before: the bits of a
// row depend on no other row, no chunking, no thread count and no instruction set (docs/architecture.md 4).
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
    std::string kernels;  // forces an entry of the kernel tables; empty: the best of this CPU
    SumOrder sums = SumOrder::lanes;
};

// The config of a checkpoint, whatever its tensors' names begin with (a multimodal model's text part).
Result<ModelConfig> model_config(const Checkpoint& checkpoint);

// The other end.
class Head {
public:
    static Result<Head> load(const ModelConfig& config, WeightSource& weights);
    // The last norm of x [rows, hidden].
    void normalize(const float* x, int64_t rows, float* y, const Workspace& work) const;
    // The same and lm_head: logits [rows, vocab] of x [rows, hidden].
    Status forward(const float* x, int64_t rows, float* logits, Workspace& work, Observer* observer) const;
    // logits [rows, vocab] of rows that are normalised already.
    Status project(const float* normed, int64_t rows, float* logits, Workspace& work, Observer* observer) const;
    // What the log-likelihood of every row is taken of.
    struct Labels {
        std::vector<int32_t> given;  // [rows], -1: none
        std::optional<PhiloxStream>
            sampled;         // instead: drawn from the row's own distribution, draw `row` of the stream
        float scale = 1.0f;  // of the gradient
    };
    // The sum of -log p(label) over the rows; dx [rows, hidden] is written. Runs in pieces of rows: the observer sees
    // each piece with its row numbers. A tied head's gradient goes to "lm_head.weight".
    Result<double> backward(const float* x, int64_t rows, const Labels& labels, float* dx, Workspace& work,
                            Observer* observer, GradientSink* sink) const;
    const Linear& linear() const { return linear_; }
    std::span<const float> norm() const { return norm_; }  // as it multiplies
    const std::string& norm_name() const { return norm_name_; }
    float eps() const { return eps_; }
    float logit_scale() const { return logit_scale_; }

private:
    void scale_logits(float* logits, int64_t rows, const Workspace& work, bool bf16) const;

    Linear linear_;  // "lm_head", also when tied
    std::vector<float> norm_;
    std::string norm_name_;
    float eps_ = 0, logit_scale_ = 1.0f;
};

struct ModelParts {
    Embedding embedding;
    std::vector<Block> blocks;
    Head head;
    std::optional<Predictor> predictor;  // where WeightOptions::prediction asks for it
};
// Checks every tensor's presence and shape against the config before it reads in `mode`.
Result<ModelParts> load_parts(const ModelConfig& config, const Checkpoint& checkpoint, const WeightOptions& options,
                              ThreadPool& pool, WeightSource::Mode mode);

class Model : public LanguageModel {
public:
    // Keeps the checkpoint open; the pool outlives the model.
    static Result<Model> load(std::shared_ptr<const Checkpoint> checkpoint, const ModelOptions& options,
                              ThreadPool& pool);

    // Reads the weights of its checkpoint again, whose owner changed them (model/parameters.h). What sequences hold of
    // their past is still that of the weights before.
    Status renew();

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
    // Advances the sequences where `look` is false or the logits are finite.
    Status run(const Batch& batch, std::span<float> logits, Observer* observer, bool look) const;
    std::shared_ptr<const Checkpoint> checkpoint_;
    WeightOptions options_;
    std::unique_ptr<ModelConfig> config_;
    ModelParts parts_;
    std::unique_ptr<Workspace> work_;
    // Where there is a predictor: of the rows of the last batch, behind the last norm; of the last predict().
    mutable std::vector<float> hidden_, predicted_;
};

// One block alone, checked and packed: calibration streams layer by layer.
Result<Block> load_block(const Checkpoint& checkpoint, const ModelConfig& config, size_t index,
                         const WeightOptions& options, ThreadPool& pool);

}  // namespace nibble
