// The mixers of model/block.h on a GPU. A device mixer is made from the CPU mixer's outline (names, shapes, small
// vectors: WeightSource::Mode::outline); what it computes is that mixer's forward pass with Compute::bf16, rounded at
// the same places, with the orders of sums that kernels/*_cuda.h state.
#pragma once

#include "kernels/attention_cuda.h"
#include "model/block.h"
#include "model/device_step.h"
#include "model/device_weights.h"

#include <memory>
#include <optional>

namespace nibble {

class DeviceMixer {
public:
    virtual ~DeviceMixer() = default;
    // How the mixer wants its input from a kernel that has whole rows; `data` is the caller's.
    virtual Result<cuda::RowsOut> order(DeviceStep&) const { return cuda::RowsOut{}; }
    // Whether forward() takes DeviceStep::norm instead of x.
    virtual Result<bool> norms(DeviceStep&) const { return false; }
    // y [rows, hidden] FP32, not rounded, from the normalised x [rows, hidden] BF16 as order() says.
    virtual Status forward(const std::byte* x, float* y, DeviceStep& step) const = 0;
    // Of scratch memory for so many rows in so many segments, at most; without what attention plans ask for.
    virtual int64_t scratch_bytes(int64_t rows) const = 0;
    virtual StateLayout state() const { return {}; }
    // What attention kernels must know beforehand, but for the sizes of a batch.
    virtual std::optional<cuda::AttentionProblem> attention() const { return {}; }
    virtual const Rope* rope() const { return nullptr; }  // null: no rotary embedding
};

// Error: a shape or a format without a kernel; names the mixer or the tensor.
Result<std::unique_ptr<DeviceMixer>> make_device_mixer(const ModelConfig& model, const Block& block,
                                                       DeviceWeights& weights);

// K and V as the device keeps them. Error: a format it has no kernel for.
struct DeviceKv {
    cuda::KvShape shape;
    const float* k_scales = nullptr;
    const float* v_scales = nullptr;

    static Result<DeviceKv> make(const KvShape& kv, const std::string& prefix, DeviceWeights& weights);
    cuda::KvCache cache(const DeviceStep& step) const;
};

}  // namespace nibble
