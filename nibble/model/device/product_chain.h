// One token of a dense model whose linears all hold FP8 codes, or all records: all between two attentions is one kernel
// (kernels/product_chain_cuda.h).
#pragma once

#include "kernels/product_chain_cuda.h"
#include "model/device/attention.h"
#include "model/device/mlp.h"

#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace nibble {

class DeviceProductChain {
public:
    // Null where the model is not attention and feed-forward by turns, has norms behind its mixers, or one of its
    // products has another kernel. The layers' mixers outlive the chain.
    static Result<std::optional<DeviceProductChain>> make(std::span<const DeviceLayer> layers, float eps,
                                                          int64_t hidden, const DeviceInfo& device);

    // h [hidden] BF16 through all blocks; the sums go to `other` and back, and the two change places with them. What
    // the last block adds is left in y [hidden]. nonfinite: a word a block, of its sum.
    Status forward(std::byte*& h, std::byte*& other, float* y, int32_t* nonfinite, DeviceStep& step) const;
    cuda::KernelChoice describe() const;
    int64_t scratch_bytes() const;  // without what attention plans ask for

private:
    struct Layer {
        const DeviceAttention* attention = nullptr;
        const DeviceMlp* mlp = nullptr;
        const float* attention_norm = nullptr;
        const float* mlp_norm = nullptr;
    };
    struct Rows {  // of scratch memory
        float* qkv = nullptr;
        std::byte* heads = nullptr;
        float* down = nullptr;
    };
    // Up to the i-th attention's q, k and v: what follows the attention before, and the norm.
    std::vector<cuda::ChainedProduct> products(size_t i, const Rows& rows, int32_t* nonfinite) const;
    cuda::ProductChain chain(std::span<const cuda::ChainedProduct> products) const;

    std::vector<Layer> layers_;
    float eps_ = 0;
    int64_t hidden_ = 0;
    DeviceInfo device_;
    std::byte* between(size_t i) const;  // ProductChain::between of the i-th

    static constexpr int copies = 3;
    std::optional<DeviceArena> memory_;  // where the kernels' thread blocks meet, and what they hand on
    uint64_t* meet_ = nullptr;
    std::byte* between_ = nullptr;  // [copies][between_bytes_]
    int64_t between_bytes_ = 0;
};

}  // namespace nibble
