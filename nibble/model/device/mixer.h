// The mixers of model/cpu/block.h (attention, latent attention, MLP, mixture of experts, Mamba-2) on a GPU.
//
// A device mixer is built from the CPU mixer's outline: names, shapes and small vectors, without matrices
// (WeightSource::Mode::outline). Its forward pass computes what the CPU mixer computes with Compute::bf16 and rounds at
// the same places. Sums are in the orders that kernels/*_cuda.h state, so the bits differ from the CPU's.
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
    // How forward() wants its input.
    virtual Result<InputPlan> plan(const DeviceStep&) const { return InputPlan{}; }
    // in: normalised rows [rows, hidden] as plan() says (in.side is the mixer's own to use). y [rows, hidden]: FP32,
    // not rounded.
    virtual Status forward(const DeviceInput& in, float* y, DeviceStep& step) const = 0;
    // Adds the products that forward() queues for step.rows rows, in order, and their kernels. inside: as DeviceInput
    // has a norm. Reads no device memory, so that a mixer that was only planned (DeviceWeights::Mode::plan) will do.
    virtual Status kernels(bool inside, const DeviceStep& step, std::vector<KernelUse>& uses) const = 0;
    // Upper bound of the scratch memory that forward() takes for `rows` rows, without the workspace of attention.
    virtual int64_t scratch_bytes(int64_t rows) const = 0;
    // Whether forward() waits for the device, so that no graph may hold it.
    virtual bool waits() const { return false; }
    virtual StateLayout state() const { return {}; }
    // The attention problem of this mixer, without the sizes that a batch brings; no value: no attention.
    virtual std::optional<cuda::AttentionProblem> attention() const { return {}; }
    virtual const Rope* rope() const { return nullptr; }  // null: no rotary embedding
    virtual DeviceKv* kv() { return nullptr; }            // null: none; a trainer's scales lie elsewhere
};

// Errors name the mixer or the tensor: a shape or a format for which there is no kernel.
Result<std::unique_ptr<DeviceMixer>> make_device_mixer(const ModelConfig& model, const Block& block,
                                                       DeviceWeights& weights);

// A residual block on the device: h + post_norm(mixer(norm(h))).
struct DeviceLayer {
    BlockConfig config;
    const float* norm = nullptr;         // [hidden]
    const float* post_norm = nullptr;    // [hidden]; null: none
    std::shared_ptr<DeviceMixer> mixer;  // of the layer and of its copies

    static Result<DeviceLayer> make(const ModelConfig& model, const Block& block, DeviceWeights& weights);
};

// Shape, format and scales of the K and V that an attention block keeps on the device. Error: a format without a
// kernel.
struct DeviceKv {
    cuda::KvShape shape;
    const float* k_scales = nullptr;
    const float* v_scales = nullptr;
    const float* q_scale = nullptr;  // one; null: queries are not rounded

    static Result<DeviceKv> make(const KvShape& kv, const std::string& prefix, DeviceWeights& weights);
    cuda::KvCache cache(const DeviceStep& step) const;
    // Queries [step.rows, cols] as they meet K: rounded in scratch memory (query_bytes()), or themselves.
    Result<const std::byte*> read_queries(const std::byte* q, int64_t cols, DeviceStep& step) const;
    int64_t query_bytes(int64_t rows, int64_t cols) const {
        return q_scale ? 2 * rows * cols + DeviceArena::alignment : 0;
    }
};

}  // namespace nibble
