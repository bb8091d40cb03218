// The mixers of model/cpu/block.h (attention, latent attention, MLP, mixture of experts, Mamba-2, gated delta net) on
// a GPU.
//
// A device mixer is built from the CPU mixer's outline: names, shapes and small vectors, without matrices
// (WeightSource::Mode::outline). Its forward pass computes what the CPU mixer computes with Compute::bf16 and rounds at
// the same places. kernels/*_cuda.h state the order of sums; it differs from the CPU's, and so do the bits.
#pragma once

#include "kernels/attention_cuda.h"
#include "model/cpu/block.h"
#include "model/device/step.h"
#include "model/device/weights.h"

#include <memory>
#include <optional>

namespace nibble {

struct DeviceKv;

class DeviceMixer {
public:
    virtual ~DeviceMixer() = default;
    // Returns the preferred layout of forward()'s input.
    virtual Result<InputPlan> plan(const DeviceStep&) const { return InputPlan{}; }
    // Computes y [rows, hidden] in FP32, not rounded. in: normalized rows [rows, hidden] in the layout of plan(); the
    // mixer may set in.side itself.
    virtual Status forward(const DeviceInput& in, float* y, DeviceStep& step) const = 0;
    // Adds to `uses` the products that forward() queues for step.rows rows, in order, with their kernels. inside:
    // DeviceInput has a norm. Reads no device memory, so a mixer that was only planned (DeviceWeights::Mode::plan) is
    // sufficient.
    virtual Status kernels(bool inside, const DeviceStep& step, std::vector<KernelUse>& uses) const = 0;
    // Returns an upper bound of the scratch bytes of forward() for `rows` rows, without the workspace of attention.
    virtual int64_t scratch_bytes(int64_t rows) const = 0;
    // Returns true if forward() waits for the device. Such a mixer cannot be captured in a graph.
    virtual bool waits() const { return false; }
    virtual StateLayout state() const { return {}; }
    // Returns the attention problem of this mixer without the sizes of a batch; no value: the mixer has no attention.
    virtual std::optional<cuda::AttentionProblem> attention() const { return {}; }
    virtual const Rope* rope() const { return nullptr; }  // null: no rotary embedding
    virtual DeviceKv* kv() {
        return nullptr;
    }  // null: no KV cache. Not const: a trainer's scales are stored
       // elsewhere.
    // The model's block (BlockConfig::index) whose keys and values the mixer reads instead of its own; -1: none.
    virtual int kv_block() const { return -1; }
};

// Builds the mixer of `block`; outline: the CPU's mixer of the same block. Errors name the mixer or the tensor: a shape
// or a format without a kernel.
Result<std::unique_ptr<DeviceMixer>> make_device_mixer(const ModelConfig& model, const BlockConfig& block,
                                                       const Mixer& outline, DeviceWeights& weights);

// A residual block on the device: (h + residual_scale * post_norm(mixer(norm(h)))) * output_scale. With `centered` the
// norms are LayerNorm.
struct DeviceLayer {
    BlockConfig config;
    const float* norm = nullptr;       // [hidden]; null: none
    const float* norm_bias = nullptr;  // [hidden]; null: none
    const float* post_norm = nullptr;  // [hidden]; null: none
    const float* post_bias = nullptr;  // [hidden]; null: none
    float output_scale = 1.0f;
    bool centered = false;
    std::shared_ptr<DeviceMixer> mixer;  // shared by copies of the layer

    // Returns whether the product after the block can compute the sum of the stream.
    bool plain_sum() const { return !post_norm && !centered && config.residual_scale == 1.0f && output_scale == 1.0f; }
    // Returns whether the mixer's first product can compute its norm.
    bool plain_norm() const { return norm && !centered; }

    static Result<DeviceLayer> make(const ModelConfig& model, const Block& block, DeviceWeights& weights);
};

// Shape, format and scales of K and V that an attention block keeps on the device. Error: a format without a kernel.
struct DeviceKv {
    cuda::KvShape shape;
    const float* k_scales = nullptr;
    const float* v_scales = nullptr;
    const float* q_scale = nullptr;  // one value; null: queries are not rounded

    static Result<DeviceKv> make(const KvShape& kv, const std::string& prefix, DeviceWeights& weights);
    cuda::KvCache cache(const DeviceStep& step) const;
    // Returns the queries [step.rows, cols] in the precision in which they are multiplied with K: rounded in scratch
    // memory (query_bytes()), or q itself.
    Result<const std::byte*> read_queries(const std::byte* q, int64_t cols, DeviceStep& step) const;
    int64_t query_bytes(int64_t rows, int64_t cols) const {
        return q_scale ? 2 * rows * cols + DeviceArena::alignment : 0;
    }
};

}  // namespace nibble
