// The way back of training on a GPU: gradients of the engine's operators, the loss at the head, the optimizer.
//
// Gradients of activations are BF16 [tokens, ...], that of the residual stream FP32 [tokens, width], those of
// parameters FP32. Sums over tokens are made in two stages of fixed parts, so that no result depends on timing or on
// how many multiprocessors there are; nothing is added atomically. Formulas: kernels/elementwise_backward.h,
// model/gradients.h (norms), train/optimizer.h; attention: dS = P * (dP - sum(dO * O)).
//
// Pointers are device pointers, 16-byte aligned; rows are adjacent where no stride is given; widths are multiples of 8.
// Functions queue work and return at once; they neither allocate nor wait.
#pragma once

#include "kernels/elementwise.h"
#include "kernels/train_args.h"
#include "tensor/device.h"

#include <memory>

namespace nibble::cuda {

// Once per device, before anything else here.
Status prepare_training(const DeviceInfo& device);

// ---- Products, by cuBLASLt: the kernel its heuristics put first, chosen once per plan ------------------------------

struct BackProducts;  // dX and dW of a linear, for one number of tokens
struct BackShape {
    int64_t tokens = 0, rows = 0, cols = 0;  // of W [rows, cols]
    bool scaled = false;                     // products with BackScale
};
// What multiplies the finished sum, on the device; null: nothing.
struct BackScale {
    const float* factor = nullptr;
    const float* ends = nullptr;  // {0, 1}
};
struct BackPlan {
    BackShape shape;
    std::shared_ptr<const BackProducts> products;
};
// Error: the library is absent, or has no kernel for the shape.
Result<BackPlan> plan_back_products(const BackShape& shape, const DeviceInfo& device);
inline constexpr int64_t back_workspace_bytes = int64_t{32} << 20;
// dx [tokens, cols] BF16 = dy [tokens, rows] BF16 times w [rows, cols] BF16.
Status back_input_gradient(const BackPlan& plan, const std::byte* dy, const std::byte* w, std::byte* dx,
                           std::byte* workspace, const Stream& stream, const BackScale& scale = {});
// dw [rows, cols] FP32 = dy^T x, or with `add` += it.
Status back_weight_gradient(const BackPlan& plan, const std::byte* dy, const std::byte* x, float* dw, bool add,
                            std::byte* workspace, const Stream& stream, const BackScale& scale = {});

// ---- Norms, activations, rotary embedding --------------------------------------------------------------------------

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

// ---- Attention -----------------------------------------------------------------------------------------------------

bool has_attention_backward(int dim);
int64_t attention_backward_workspace(int64_t tokens, int q_heads);
Status attention_backward(const AttentionBackward& a, const Stream& stream);

// ---- Both ends -----------------------------------------------------------------------------------------------------

Status label_loss(const LabelLoss& l, const Stream& stream);
Status teacher_loss(const TeacherLoss& l, const Stream& stream);

Status embedding_backward(const EmbeddingBackward& e, const Stream& stream);

// Parameters as they multiply: to = bf16(from * scale), BF16; x += 1.
Status scale_rows(const std::byte* from, int64_t count, float scale, std::byte* to, const Stream& stream);
Status add_one(float* x, int64_t count, const Stream& stream);

// ---- The step ------------------------------------------------------------------------------------------------------

// to += from
Status add_gradient(float* to, const float* from, int64_t count, const Stream& stream);
// to = a + b; `to` may be one of them.
Status sum_gradients(float* to, const float* a, const float* b, int64_t count, const Stream& stream);
// Sums of squares in FP64, in an order that the number of elements alone decides: those of `square_sections` sections
// of section_elements(count) neighbours each, some of which may be another GPU's, then the sum of all sections'.
inline constexpr int square_sections = 1056;
constexpr int64_t section_elements(int64_t count) {
    return ((count + square_sections - 1) / square_sections + 63) / 64 * 64;
}
// parts[i] = that of section first + i; x: element 0's place, what is read of it are these sections.
Status section_squares(const float* x, int64_t count, int first, int sections, double* parts, const Stream& stream);
// *sum = that of parts[0] ... parts[count - 1].
Status sum_sections(const double* parts, int count, double* sum, const Stream& stream);
// *clip: what clipping a gradient of this sum of squares multiplies it with; NaN where the sum is not finite.
Status clip_factor(const double* squares, double limit, float* clip, const Stream& stream);
Status adamw_update(const AdamW& a, const Stream& stream);

}  // namespace nibble::cuda
