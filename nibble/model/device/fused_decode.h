// A single-token path for dense models whose linears are all FP8 codes or all records: one kernel computes everything
// between two attentions (kernels/fused_decode_cuda.h).
#pragma once

#include "kernels/fused_decode_cuda.h"
#include "model/device/attention.h"
#include "model/device/mlp.h"

#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace nibble {

class DeviceFusedDecode {
public:
    // Returns no value if layers do not alternate between attention and feed-forward, if mixers have a norm after them,
    // or if a product needs another kernel. The layers' mixers must outlive the object.
    static Result<std::optional<DeviceFusedDecode>> make(std::span<const DeviceLayer> layers, float eps, int64_t hidden,
                                                         const DeviceInfo& device);

    // Runs h [hidden] (BF16) through all blocks. Sums are written alternately to `other` and `h`; the two pointers are
    // swapped each time. The output of the last block is left in y [hidden], not yet added. nonfinite [layers]: set if
    // a block's sum is not finite.
    Status forward(std::byte*& h, std::byte*& other, float* y, int32_t* nonfinite, DeviceStep& step) const;
    cuda::KernelChoice describe() const;
    int64_t scratch_bytes() const;  // without the workspace of attention

private:
    struct Layer {
        const DeviceAttention* attention = nullptr;
        const DeviceMlp* mlp = nullptr;
        const float* attention_norm = nullptr;
        const float* mlp_norm = nullptr;
    };
    struct Rows {  // arrays in scratch memory
        float* qkv = nullptr;
        std::byte* heads = nullptr;
        float* down = nullptr;
    };
    // Returns the products from the previous attention's output to the i-th attention's q, k and v, norms included.
    std::vector<cuda::FusedProduct> products(size_t i, const Rows& rows, int32_t* nonfinite) const;
    cuda::FusedDecode fused_decode(std::span<const cuda::FusedProduct> products) const;

    std::vector<Layer> layers_;
    float eps_ = 0;
    int64_t hidden_ = 0;
    DeviceInfo device_;
    std::byte* between(size_t i) const;  // FusedDecode::between of the i-th kernel

    static constexpr int copies = 3;
    std::optional<DeviceArena> memory_;  // memory for the synchronization of thread blocks and for values passed
                                         // between products
    uint64_t* meet_ = nullptr;
    std::byte* between_ = nullptr;  // [copies][between_bytes_]
    int64_t between_bytes_ = 0;
};

}  // namespace nibble
