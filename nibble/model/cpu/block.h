// A residual block: x = x + residual_scale * post_norm(mixer(norm(x))). Mixers (attention, MLP, MoE, Mamba-2 ...)
// implement one interface; this file holds the rest of the block.
#pragma once

#include "architecture/model_config.h"
#include "base/error.h"
#include "model/batch.h"
#include "model/cpu/hyper.h"
#include "model/cpu/linear.h"
#include "model/cpu/norm.h"
#include "model/cpu/workspace.h"
#include "model/sequence.h"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace nibble {

class WeightSource;

// Receives the data that calibration needs. input() is called once per linear and forward pass, with all rows of the
// batch in row order; the pointers are valid only during the call. An expert's linear is called with the rows routed to
// it and their row numbers; `batch_rows` is empty where row i is the batch's row i.
class Observer {
public:
    virtual ~Observer() = default;
    virtual Status input(const Linear& linear, const float* x, int64_t rows, int64_t cols,
                         std::span<const int32_t> batch_rows) = 0;
    // Receives K (after the rotary embedding) and V of an attention block before they enter the cache: [rows, cols],
    // adjacent rows.
    virtual Status kv(const std::string& prefix, const float* k, const float* v, int64_t rows, int64_t k_cols,
                      int64_t v_cols) = 0;
    // Receives the block's queries after the rotary embedding: [rows, cols], `stride` floats from row to row.
    virtual Status queries(const std::string& /*prefix*/, const float* /*q*/, int64_t /*rows*/, int64_t /*cols*/,
                           int64_t /*stride*/) {
        return Ok{};
    }
    // Receives the gradient of the loss with respect to a linear's output [rows, cols]. Only backward passes call it,
    // right after input() for the same linear and rows.
    virtual Status output_gradient(const Linear& linear, const float* g, int64_t rows, int64_t cols,
                                   std::span<const int32_t> batch_rows) = 0;
    // Returns true if a MoE passes all rows of the batch to input() for every expert. The routing itself does not
    // change.
    virtual bool every_expert() const { return false; }
};

// Receives gradients of parameters. nullptr stands for "only gradients of activations" (calibration). A tensor may be
// added several times (batches, texts): its gradient is the sum. Vectors have shape [n, 1]. Experts without tokens are
// not added.
class GradientSink {
public:
    virtual ~GradientSink() = default;
    virtual Status add(const std::string& tensor, const float* gradient, int64_t rows, int64_t cols) = 0;
};

class Mixer {
public:
    virtual ~Mixer() = default;
    // Computes y [batch.rows(), hidden] from the normalized x of the same shape. y must not be x.
    virtual Status forward(const Batch& batch, const float* x, float* y, Workspace& work, Observer* observer) const = 0;
    // Computes dx [rows, hidden] from dy, the gradient of the output, and x, the input of forward(). dx is overwritten.
    // Requires Batch::whole(). Recomputes intermediates. FP32.
    virtual Status backward(const Batch& batch, const float* x, const float* dy, float* dx, Workspace& work,
                            Observer* observer, GradientSink* sink) const = 0;
    virtual std::vector<const Linear*> linears() const = 0;
    // Returns the linears, grouped by the products that compute them (model/cpu/linear_products.h), without routers.
    virtual std::vector<std::span<const Linear>> units() const = 0;
    virtual StateLayout state() const { return {}; }
};

class Block {
public:
    static Result<Block> load(const ModelConfig& model, const BlockConfig& config, WeightSource& weights);

    const BlockConfig& config() const { return config_; }
    const Mixer& mixer() const { return *mixer_; }
    std::vector<const Linear*> linears() const { return mixer_->linears(); }
    std::span<const float> norm() const { return norm_.weight; }  // weights as they are multiplied; may be empty
    std::span<const float> post_norm() const { return post_norm_.weight; }  // may be empty
    std::span<const float> norm_bias() const { return norm_.bias; }         // may be empty
    std::span<const float> post_bias() const { return post_norm_.bias; }    // may be empty
    float output_scale() const { return output_scale_; }                    // factor of x after the block
    StateLayout state() const { return mixer_->state(); }

    // Updates x [batch.rows(), ModelConfig::width()] in place. Error: a NaN or infinity in the result; the message
    // names layer, mixer and token.
    Status forward(const Batch& batch, float* x, Workspace& work, Observer* observer) const;
    // Replaces dy, the gradient of the output, by the gradient of x. x: the input of forward(). Both [batch.rows(),
    // hidden].
    Status backward(const Batch& batch, const float* x, float* dy, Workspace& work, Observer* observer,
                    GradientSink* sink) const;

private:
    BlockConfig config_;
    int64_t hidden_ = 0;
    // Returns the mixer's input: x after the block's norm, in memory of the arena, or x itself if the block has no
    // norm.
    const float* normed(const float* x, int64_t rows, Workspace& work) const;

    HyperConnection hyper_;      // may be empty
    Norm norm_, post_norm_;      // may be empty
    float output_scale_ = 1.0f;  // factor of x after the block
    std::unique_ptr<Mixer> mixer_;
};

// Returns the error for `what` (NaN, infinity) in row `row` of a batch. The message names layer, mixer and token.
Error nonfinite(const BlockConfig& config, const Batch& batch, int64_t row, std::string_view what);

// One loader per alternative of MixerConfig, each in the file of its name (model/cpu/attention.cpp ...). Errors: a
// missing tensor, a wrong shape, an unsupported format.
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
Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block,
                                          const GatedDeltaConfig& config, WeightSource& weights);
Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block,
                                          const ShortConvConfig& config, WeightSource& weights);
Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block,
                                          const PerLayerInputConfig& config, WeightSource& weights);
Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block,
                                          const ParallelConfig& config, WeightSource& weights);
Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig& model, const BlockConfig& block,
                                          const CompressedAttentionConfig& config, WeightSource& weights);

}  // namespace nibble
