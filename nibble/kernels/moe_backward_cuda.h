// Backward pass of a mixture of experts on a GPU: products of rows sorted by expert, the combination of the experts'
// outputs, the router.
//
// Rows are sorted as in Routing (kernels/moe_cuda.h): those of expert e are [begin[e], begin[e + 1]), on the device; no
// function waits to read them. Orders of sums: a gradient of weights adds an expert's rows in ascending order (of
// tokens), as one chain of mma.sync.m16n8k16; a token adds its experts in ascending order. Results do not depend on
// timing.
#pragma once

#include "kernels/elementwise.h"
#include "kernels/moe_cuda.h"
#include "tensor/device.h"

namespace nibble::cuda {

// Shapes of y = x W_e^T with the weights of all experts stacked: W [experts * rows, cols]. rows and cols are multiples
// of 8.
struct ExpertsShape {
    int experts = 0;  // at most 1024
    int64_t slots = 0, rows = 0, cols = 0;
};
// dx [slots, cols] BF16 = dy [slots, rows] BF16 times W_e, w BF16.
Status experts_input_gradient(const ExpertsShape& shape, const int32_t* begin, const std::byte* dy, const std::byte* w,
                              std::byte* dx, const Stream& stream);
// dw [experts * rows, cols] FP32 = dy^T x over every expert's rows, x [slots, cols] BF16. Writes zeros for experts
// without rows.
Status experts_weight_gradient(const ExpertsShape& shape, const int32_t* begin, const std::byte* dy, const std::byte* x,
                               float* dw, const Stream& stream);

// Writes the operands (kernels/operand_matmul_cuda.h) of all experts, adjacent, from w BF16, 16-byte aligned; `slots`
// is not read. Fill the tiles with zeros before.
Status experts_operands(const ExpertsShape& shape, const std::byte* w, std::byte* tiles, const Stream& stream);

// Gradient of mid = a(gate) * up (or a(in)) in out = sum over experts of weight * W mid. `d_mid` is the gradient of mid
// for a weight of 1.
//   d_weights[slot] = sum over the row of d_mid * mid;  mid = weight * mid;  d_in = the gradient of in
struct ExpertsActivateBackward {
    Activation activation = Activation::silu;
    bool gated = true;
    int64_t slots = 0, width = 0;      // width of mid, a multiple of 8
    const int32_t* places = nullptr;   // [slots] in token order: the sorted row
    const float* weights = nullptr;    // [slots] in token order
    const std::byte* in = nullptr;     // [slots, 2 * width] or [slots, width] BF16, sorted
    const std::byte* d_mid = nullptr;  // [slots, width] BF16, sorted
    std::byte* d_in = nullptr;         // laid out like `in`
    std::byte* mid = nullptr;          // [slots, width] BF16, sorted
    float* d_weights = nullptr;        // [slots] in token order
    bool plain_mid = false;            // writes mid without the weight, as in the forward pass
};
Status experts_activate_backward(const ExpertsActivateBackward& a, const Stream& stream);

// Multiplies each of rows [slots, width] BF16 (sorted) by its weight, rounded. places and weights as above; width is a
// multiple of 8.
Status weigh_slots(int64_t slots, int64_t width, const int32_t* places, const float* weights, std::byte* rows,
                   const Stream& stream);

// The gradient of the router's logits, by the formulas of model/cpu/router.h (the choice itself has no gradient).
struct RouteBackward {
    RouterConfig config;
    int64_t tokens = 0;
    const float* logits = nullptr;     // [tokens, experts]
    const int32_t* experts = nullptr;  // [tokens, top_k]
    const float* d_weights = nullptr;  // [tokens, top_k]
    std::byte* d_logits = nullptr;     // [tokens, experts] BF16
};
Status route_backward(const RouteBackward& r, const Stream& stream);

// out[t] = bf16(sum over the token's slots of rows[place], then the rows of `more` in order), with FP32 sums.
struct SumSlots {
    int64_t tokens = 0, width = 0;  // width: a multiple of 8
    int top_k = 0;                  // 0: no slots
    const int32_t* places = nullptr;
    const std::byte* rows = nullptr;                         // [tokens * top_k, width] BF16, sorted
    const std::byte* more[3] = {nullptr, nullptr, nullptr};  // [tokens, width] BF16; null: none
    std::byte* out = nullptr;                                // [tokens, width] BF16; may be one of `more`
};
Status sum_slots(const SumSlots& s, const Stream& stream);

}  // namespace nibble::cuda
