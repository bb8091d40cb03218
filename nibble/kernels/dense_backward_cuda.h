// Backward pass of a linear in BF16 on a GPU: dX = dY W and dW = dY^T X by cuBLASLt, with the first kernel of its
// heuristics, chosen once per plan.
//
// Pointers are device pointers, 16-byte aligned. Rows without a stride are adjacent. Widths are multiples of 8.
// Functions queue work and return at once; they neither allocate nor wait.
#pragma once

#include "tensor/device.h"

#include <memory>

namespace nibble::cuda {

struct BackProducts;  // dX and dW of a linear, for one number of tokens
struct BackShape {
    int64_t tokens = 0, rows = 0, cols = 0;  // rows and cols of W [rows, cols]
    bool scaled = false;                     // products use a BackScale
};
// The factor of the finished sum, in device memory; null: 1.
struct BackScale {
    const float* factor = nullptr;
    const float* ends = nullptr;  // {0, 1}
};
struct BackPlan {
    BackShape shape;
    std::shared_ptr<const BackProducts> products;
};
// Errors: the library is absent, or has no kernel for the shape.
Result<BackPlan> plan_back_products(const BackShape& shape, const DeviceInfo& device);
inline constexpr int64_t back_workspace_bytes = int64_t{32} << 20;
// dx [tokens, cols] BF16 = dy [tokens, rows] BF16 times w [rows, cols] BF16.
Status back_input_gradient(const BackPlan& plan, const std::byte* dy, const std::byte* w, std::byte* dx,
                           std::byte* workspace, const Stream& stream, const BackScale& scale = {});
// dw [rows, cols] FP32 = dy^T x; with `add` added to dw.
Status back_weight_gradient(const BackPlan& plan, const std::byte* dy, const std::byte* x, float* dw, bool add,
                            std::byte* workspace, const Stream& stream, const BackScale& scale = {});

}  // namespace nibble::cuda
