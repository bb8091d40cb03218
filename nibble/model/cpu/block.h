// A residual block: x = x + residual_scale * post_norm(mixer(norm(x))). Mixers (attention, MLP, MoE, Mamba-2 ...)
// implement one interface; everything around them is written once, here.
#pragma once

#include "architecture/model_config.h"
#include "base/error.h"
#include "model/batch.h"
#include "model/cpu/linear.h"
#include "model/cpu/workspace.h"
#include "model/sequence.h"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace nibble {

class WeightSource;

// Sees what calibration needs. Called once per linear and forward, with all rows of the batch in row order; the data
// lives only during the call. An expert's linear is called with the rows routed to it, and their row numbers;
// `batch_rows` is empty where row i is the batch's row i.
class Observer {
public:
    virtual ~Observer() = default;
    virtual Status input(const Linear& linear, const float* x, int64_t rows, int64_t cols,
                         std::span<const int32_t> batch_rows) = 0;
    // K (after the rotary embedding) and V of an attention block, as they enter the cache: [rows, cols], adjacent.
    virtual Status kv(const std::string& prefix, const float* k, const float* v, int64_t rows, int64_t k_cols,
                      int64_t v_cols) = 0;
    // Its queries after the rotary embedding: [rows, cols], `stride` floats from row to row.
    virtual Status queries(const std::string& /*prefix*/, const float* /*q*/, int64_t /*rows*/, int64_t /*cols*/,
                           int64_t /*stride*/) {
        return Ok{};
    }
    // Backward only: the gradient of the loss with respect to a linear's output, right after `input` was called for the
    // same linear and rows.
    virtual Status output_gradient(const Linear& linear, const float* g, int64_t rows, int64_t cols,
                                   std::span<const int32_t> batch_rows) = 0;
    // Whether a MoE shows every expert all rows of the batch. What flows on is routed as ever.
    virtual bool every_expert() const { return false; }
};

// Where gradients of parameters go; nullptr when only activations' gradients are wanted (calibration). A tensor may
// come several times (batches, texts): its gradient is the sum. Vectors are [n, 1]; an expert without tokens does not
// come.
class GradientSink {
public:
    virtual ~GradientSink() = default;
    virtual Status add(const std::string& tensor, const float* gradient, int64_t rows, int64_t cols) = 0;
};

class Mixer {
public:
    virtual ~Mixer() = default;
    // y [batch.rows(), hidden] from the normalised x of the same shape; y is not x.
    virtual Status forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const = 0;
    // Whole sequences only (Batch::whole). x: the input of forward; dy: the gradient of its output; dx is written, not
    // added to. Recomputes what it needs. FP32.
    virtual Status backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work,
                            Observer* observer, GradientSink* sink) const = 0;
    virtual std::vector<const Linear*> linears() const = 0;
    // The same, those that multiply as one product together (model/cpu/linear_products.h). Routers are no part of it.
    virtual std::vector<std::span<const Linear>> units() const = 0;
    virtual StateLayout state() const { return {}; }
};

class Block {
public:
    static Result<Block> load(const ModelConfig& model, const BlockConfig& config, WeightSource& weights);

    const BlockConfig& config() const { return config_; }
    const Mixer& mixer() const { return *mixer_; }
    std::vector<const Linear*> linears() const { return mixer_->linears(); }
    std::span<const float> norm() const { return norm_; }            // as it multiplies; may be empty
    std::span<const float> post_norm() const { return post_norm_; }  // may be empty
    StateLayout state() const { return mixer_->state(); }

    // x [batch.rows(), hidden], in and out. A NaN or infinity in the result is an error that names layer, mixer and
    // token.
    Status forward(const Batch& batch, float* x, Workspace& work, Observer* observer) const;
    // x the input of forward, dy the gradient of its output; dy becomes the gradient of x.
    Status backward(const Batch& batch, const float* x, float* dy, Workspace& work, Observer* observer,
                    GradientSink* sink) const;

private:
    BlockConfig config_;
    int64_t hidden_ = 0;
    float eps_ = 0;
    // The mixer's input: x after the block's norm, in memory of the arena; x itself where there is none.
    const float* normed(const float* x, int64_t rows, Workspace& work) const;

    std::vector<float> norm_, post_norm_;  // as they multiply: 1 + w where the model says so; empty: none
    std::unique_ptr<Mixer> mixer_;
};

// A forward pass that made `what` in row `row` of a batch: names layer, mixer and token.
Error nonfinite(const BlockConfig& config, const Batch& batch, int64_t row, std::string_view what);

// One per alternative of MixerConfig; each lives in the file of its name (model/cpu/attention.cpp ...).
Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block,
                                          const AttentionConfig& config, WeightSource& weights);
Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block,
                                          const LatentAttentionConfig& config, WeightSource& weights);
Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block, const MlpConfig& config,
                                          WeightSource& weights);
Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block, const MoeConfig& config,
                                          WeightSource& weights);
Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block, const MambaConfig& config,
                                          WeightSource& weights);

}  // namespace nibble
