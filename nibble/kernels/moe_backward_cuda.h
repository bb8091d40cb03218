// Backward pass of a mixture of experts on a GPU: products of rows sorted by expert, the combination of the experts'
// outputs, the router.
//
// Rows are sorted as kernels/moe_cuda.h's Routing says: those of expert e in [begin[e], begin[e + 1]), on the device;
// nothing here waits to read them. Orders of sums: a gradient of weights adds an expert's rows in ascending order (of
// tokens), one chain of mma.sync.m16n8k16; a token adds its experts in ascending order. So nothing depends on timing.
#pragma once

#include "kernels/elementwise.h"
#include "kernels/moe_cuda.h"
#include "tensor/device.h"

namespace nibble::cuda {

// Of y = x W_e^T, the weights of all experts one below the other: W [experts * rows, cols]. Multiples of 8.
struct ExpertsShape {
    int experts = 0;  // at most 1024
    int64_t slots = 0, rows = 0, cols = 0;
};
// dx [slots, cols] BF16 = dy [slots, rows] BF16 W_e, w BF16.
Status experts_input_gradient(const ExpertsShape& shape, const int32_t* begin, const std::byte* dy, const std::byte* w,
                              std::byte* dx, const Stream& stream);
// dw [experts * rows, cols] FP32 = dy^T x of every expert's rows, x [slots, cols] BF16; written, zeros where an expert
// has no rows.
Status experts_weight_gradient(const ExpertsShape& shape, const int32_t* begin, const std::byte* dy, const std::byte* x,
                               float* dw, const Stream& stream);

// The operands (kernels/product_cuda.h) of all experts, one behind the other, from w BF16, aligned to 16 bytes; `slots`
// is not read. Tiles were filled with zeros before.
Status experts_operands(const ExpertsShape& shape, const std::byte* w, std::byte* tiles, const Stream& stream);

// Of mid = a(gate) * up (or a(in)) and out = sum over experts of weight * W mid: `d_mid` is the gradient of mid where
// the weight was 1.
//   d_weights[slot] = sum over the row of d_mid * mid;  mid = weight * mid;  d_in = the gradient of in
struct ExpertsActivateBackward {
    Activation activation = Activation::silu;
    bool gated = true;
    int64_t slots = 0, width = 0;      // width: of mid, a multiple of 8
    const int32_t* places = nullptr;   // [slots] in order of tokens: the sorted row
    const float* weights = nullptr;    // [slots] in order of tokens
    const std::byte* in = nullptr;     // [slots, 2 * width] or [slots, width] BF16, sorted
    const std::byte* d_mid = nullptr;  // [slots, width] BF16, sorted
    std::byte* d_in = nullptr;         // as `in`
    std::byte* mid = nullptr;          // [slots, width] BF16, sorted
    float* d_weights = nullptr;        // [slots] in order of tokens
    bool plain_mid = false;            // mid as forward has it instead
};
Status experts_activate_backward(const ExpertsActivateBackward& a, const Stream& stream);

// rows [slots, width] BF16, sorted: each times its weight, rounded. places and weights as above; width: a multiple
// of 8.
Status weigh_slots(int64_t slots, int64_t width, const int32_t* places, const float* weights, std::byte* rows,
                   const Stream& stream);

// The gradient of the router's logits, by the formulas of model/cpu/router.h (none through the choice).
struct RouteBackward {
    RouterConfig config;
    int64_t tokens = 0;
    const float* logits = nullptr;     // [tokens, experts]
    const int32_t* experts = nullptr;  // [tokens, top_k]
    const float* d_weights = nullptr;  // [tokens, top_k]
    std::byte* d_logits = nullptr;     // [tokens, experts] BF16
};
Status route_backward(const RouteBackward& r, const Stream& stream);

// out[t] = bf16(sum over the token's slots of rows[place], then `more` one after the other), FP32 sums.
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
