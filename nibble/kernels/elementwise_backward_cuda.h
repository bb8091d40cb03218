// Backward pass of norms, activations, rotary embedding and the embedding on a GPU. Formulas:
// kernels/elementwise_backward.h, model/gradients.h (norms).
//
// Gradients of activations are BF16 [tokens, ...], of the residual stream FP32 [tokens, width], of parameters FP32.
// Sums over tokens have two stages with fixed parts and no atomics, so results do not depend on timing or on the number
// of multiprocessors.
//
// Pointers are device pointers, 16-byte aligned. Rows without a stride are adjacent. Widths are multiples of 8.
// Functions queue work and return at once; they neither allocate nor wait.
#pragma once

#include "kernels/elementwise.h"
#include "kernels/elementwise_backward_args.h"
#include "tensor/device.h"

namespace nibble::cuda {

int64_t norm_backward_workspace(int64_t width);
Status norm_backward(const NormBackward& n, const Stream& stream);

// Gradients of biases.
int64_t column_sums_workspace(int64_t width);
Status column_sums(const ColumnSums& c, const Stream& stream);

// Gradient of mid = a(gate) * up, or a(in). If `mid` is given, it is recomputed with the bits of activate().
struct ActivateBackward {
    Activation activation = Activation::silu;
    bool gated = true;
    int64_t tokens = 0, width = 0;     // shape of mid
    const std::byte* in = nullptr;     // [tokens, 2 * width] BF16: gate, up; or [tokens, width]
    const std::byte* d_mid = nullptr;  // [tokens, width] BF16
    std::byte* d_in = nullptr;         // laid out like `in`
    std::byte* mid = nullptr;          // [tokens, width] BF16
};
Status activate_backward(const ActivateBackward& a, const Stream& stream);

Status rope_rows(const RopeRows& r, const Stream& stream);
// Converts d_qkv in place from gradients of rope_rows()' results to gradients of qkv, in the layout of qkv. dq_norm,
// dk_norm [dim]: gradients of the norms, written; null if not needed or without norms. workspace:
// rope_backward_workspace(dim).
int64_t rope_backward_workspace(int dim);
Status rope_backward(const RopeRows& r, std::byte* d_qkv, float* dq_norm, float* dk_norm, std::byte* workspace,
                     const Stream& stream);

Status embedding_backward(const EmbeddingBackward& e, const Stream& stream);

// Parameters in the form used by products: scale_rows: to = bf16(from * scale), BF16; add_one: x += 1.
Status scale_rows(const std::byte* from, int64_t count, float scale, std::byte* to, const Stream& stream);
Status add_one(float* x, int64_t count, const Stream& stream);

}  // namespace nibble::cuda
