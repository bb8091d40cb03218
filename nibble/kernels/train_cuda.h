// The backward pass of training on a GPU: gradients of the engine's operators, the loss and the optimizer.
//
// Gradients of activations are BF16 [tokens, ...], of the residual stream FP32 [tokens, width], of parameters FP32.
// Sums over tokens have two stages with fixed parts and no atomics, so results do not depend on timing or on the number
// of multiprocessors. Formulas: kernels/elementwise_backward.h, model/gradients.h (norms), train/optimizer.h;
// attention: dS = P * (dP - sum(dO * O)).
//
// Pointers are device pointers, 16-byte aligned. Rows without a stride are adjacent. Widths are multiples of 8.
// Functions queue work and return at once; they neither allocate nor wait. kernels/cuda_absent/train.cpp implements
// this header in a build without CUDA.
#pragma once

#include "kernels/elementwise.h"
#include "kernels/train_args.h"
#include "tensor/device.h"

#include <memory>

namespace nibble::cuda {

// Call once per device before any other function here.
Status prepare_training(const DeviceInfo& device);

// ---- Products, by cuBLASLt: the first kernel of its heuristics, chosen once per plan ------------------------------

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

// ---- Norms, activations, rotary embedding --------------------------------------------------------------------------

int64_t norm_backward_workspace(int64_t width);
Status norm_backward(const NormBackward& n, const Stream& stream);

// Gradients of biases.
int64_t column_sums_workspace(int64_t width);
Status column_sums(const ColumnSums& c, const Stream& stream);

// Gradient of mid = a(gate) * up, or a(in). If `mid` is given, it is recomputed with the bits of activate().
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
// Converts d_qkv in place from gradients of rope_rows()' results to gradients of qkv, in the layout of qkv. dq_norm,
// dk_norm [dim]: gradients of the norms, written; null if not needed or without norms. workspace:
// rope_backward_workspace(dim).
int64_t rope_backward_workspace(int dim);
Status rope_backward(const RopeRows& r, std::byte* d_qkv, float* dq_norm, float* dk_norm, std::byte* workspace,
                     const Stream& stream);

// ---- Attention -----------------------------------------------------------------------------------------------------

bool has_attention_backward(int dim);
int64_t attention_backward_workspace(int64_t tokens, int q_heads);
Status attention_backward(const AttentionBackward& a, const Stream& stream);

// ---- Loss and embedding
// ----------------------------------------------------------------------------------------------

Status label_loss(const LabelLoss& l, const Stream& stream);
Status teacher_loss(const TeacherLoss& l, const Stream& stream);

Status embedding_backward(const EmbeddingBackward& e, const Stream& stream);

// Parameters in the form used by products: scale_rows: to = bf16(from * scale), BF16; add_one: x += 1.
Status scale_rows(const std::byte* from, int64_t count, float scale, std::byte* to, const Stream& stream);
Status add_one(float* x, int64_t count, const Stream& stream);

// ---- The step ------------------------------------------------------------------------------------------------------

// to += from
Status add_gradient(float* to, const float* from, int64_t count, const Stream& stream);
// to = a + b; `to` may be one of them.
Status sum_gradients(float* to, const float* a, const float* b, int64_t count, const Stream& stream);
// Sums of squares in FP64, in an order that depends on the number of elements only: first each of `square_sections`
// sections of section_elements(count) adjacent elements (some may be on another GPU), then the sum over sections.
inline constexpr int square_sections = 1056;
constexpr int64_t section_elements(int64_t count) {
    return ((count + square_sections - 1) / square_sections + 63) / 64 * 64;
}
// parts[i] = sum of squares of section first + i. x: the address of element 0; only the given sections are read.
Status section_squares(const float* x, int64_t count, int first, int sections, double* parts, const Stream& stream);
// *sum = parts[0] + ... + parts[count - 1].
Status sum_sections(const double* parts, int count, double* sum, const Stream& stream);
// *clip = the clipping factor for a gradient with this sum of squares; NaN if the sum is not finite.
Status clip_factor(const double* squares, double limit, float* clip, const Stream& stream);
Status adamw_update(const AdamW& a, const Stream& stream);

}  // namespace nibble::cuda
