// Replaces an engine's linear (or several that read the same rows) whose stored weight is not trained (train/lora.h):
// the engine's own product over the weight plus the adapters' term.
//
//   y = base(x) + scale (x A^T) B^T       rounded to BF16 after every operation, as in train/lora.h
//
// The adapters of all parts form one pair: A [parts * rank, cols], stacked, and B [rows, parts * rank], block-diagonal.
// So q, k and v need two products. In the backward pass, with W decoded:
//
//   dL = bf16(scale dy B),  dA = dL^T x,  dB = scale dy^T bf16(x A^T),  dx = bf16(bf16(dy W) + bf16(dL A))
#pragma once

#include "train/device/adapter_unit.h"
#include "train/device/frozen_weight.h"
#include "train/device/train_linear.h"

#include <string>
#include <vector>

namespace nibble {

class FrozenProduct : public DifferentiableProduct {
public:
    FrozenProduct(std::string name, FrozenWeight weight, const AdapterUnit& adapters, const AdapterConstants& constants)
        : name_(std::move(name)), weight_(std::move(weight)), adapters_(adapters), constants_(constants) {}

    const FrozenWeight& weight() const { return weight_; }
    int64_t bytes() const;
    Status load(const Checkpoint& checkpoint, DeviceArena& arena, const Stream& stream);
    // Uses the engine's linears as the base product and returns their replacement, which this object computes.
    DeviceLinear stand_for(std::vector<DeviceLinear> base);

    Status forward(const DeviceInput& in, int64_t n, float* y, int64_t y_stride, const float* bias,
                   DeviceStep& step) const override;
    Status forward_rounded(const DeviceInput& in, int64_t n, std::byte* y, const float* bias,
                           DeviceStep& step) const override;
    bool rounds(int64_t) const override { return false; }
    Result<cuda::KernelChoice> describe(int64_t n) const override;
    int64_t scratch_bytes(int64_t n) const override;

    Status publish(const std::byte* published, const Stream& stream) const override;
    Status input_gradient(const std::byte* dy, const std::byte* x, int64_t n, std::byte* dx,
                          TrainWork& work) const override;
    Status weight_gradient(const std::byte* dy, const std::byte* x, int64_t n, float* gradient, bool add,
                           TrainWork& work) const override;
    int64_t back_scratch_bytes(int64_t n) const override;

private:
    int64_t rows() const { return weight_.rows(); }
    int64_t cols() const { return weight_.cols(); }
    int64_t width() const { return adapters_.blocks.width(); }  // columns of x A^T
    Result<std::byte*> low(const std::byte* x, int64_t n, DeviceStep& step) const;
    Result<std::byte*> low_gradient(const std::byte* dy, int64_t n, TrainWork& work) const;
    cuda::BackScale scale() const { return {constants_.scale, constants_.ends}; }

    std::string name_;
    FrozenWeight weight_;
    AdapterUnit adapters_;
    const AdapterConstants& constants_;
    std::vector<DeviceLinear> base_;
    DeviceLinear a_, b_;
    std::byte* b_rows_ = nullptr;  // BF16 [rows, width]
};

}  // namespace nibble
