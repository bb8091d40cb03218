// Backward pass of norms, activations, rotary embedding and the embedding on a GPU. Formulas:
// kernels/elementwise_backward.h, model/gradients.h (norms).
//
// Gradients of activations are BF16 [tokens, ...], that of the residual stream FP32 [tokens, width], those of
// parameters FP32. Sums over tokens are made in two stages of fixed parts, so that no result depends on timing or on
// how many multiprocessors there are; nothing is added atomically.
//
// Pointers are device pointers, 16-byte aligned; rows are adjacent where no stride is given; widths are multiples of 8.
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

// Of mid = a(gate) * up, or a(in). `mid`, where given, is computed again: the bits of activate().
struct ActivateBackward {
    Activation activation = Activation::silu;
    bool gated = true;
    int64_t tokens = 0, width = 0;     // of mid
    const std::byte* in = nullptr;     // [tokens, 2 * width] BF16: gate, up; or [tokens, width]
    const std::byte* d_mid = nullptr;  // [tokens, width] BF16
    std::byte* d_in = nullptr;         // as `in`
    std::byte* mid = nullptr;          // [tokens, width] BF16
};
Status activate_backward(const ActivateBackward& a, const Stream& stream);

Status rope_rows(const RopeRows& r, const Stream& stream);
// d_qkv, laid out as qkv, from gradients of rope_rows()' results to those of qkv, in place. dq_norm, dk_norm [dim]: of
// the norms, written; null: not wanted, or no norm. workspace: rope_backward_workspace(dim).
int64_t rope_backward_workspace(int dim);
Status rope_backward(const RopeRows& r, std::byte* d_qkv, float* dq_norm, float* dk_norm, std::byte* workspace,
                     const Stream& stream);

Status embedding_backward(const EmbeddingBackward& e, const Stream& stream);

// Parameters as they multiply: to = bf16(from * scale), BF16; x += 1.
Status scale_rows(const std::byte* from, int64_t count, float scale, std::byte* to, const Stream& stream);
Status add_one(float* x, int64_t count, const Stream& stream);

}  // namespace nibble::cuda
