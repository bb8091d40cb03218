// What the host side of kernels/cuda/train/ calls. Arguments are checked before they come here.
#pragma once

#include "kernels/train_args.h"

#include <cuda_runtime_api.h>

namespace nibble::cuda {

// Thread blocks of kernels that sum over tokens: the parts of the first stage. Any number serves; this one fills an
// H200 eight times.
inline constexpr int sum_parts = 1056;

// The same of column_sums(), whose rows are read in a moment.
inline constexpr int column_parts = 128;

cudaError_t launch_norm_backward(const NormBackward& n, cudaStream_t stream);
cudaError_t launch_column_sums(const ColumnSums& c, cudaStream_t stream);
struct ActivateBackwardArgs {
    const std::byte* in = nullptr;
    const std::byte* d_mid = nullptr;
    std::byte* d_in = nullptr;
    std::byte* mid = nullptr;
    int64_t tokens = 0, width = 0;
    int activation = 0;  // nibble::Activation
    bool gated = false;
};
cudaError_t launch_activate_backward(const ActivateBackwardArgs& a, cudaStream_t stream);
cudaError_t launch_rope_backward(const RopeRows& r, std::byte* d_qkv, float* dq_norm, float* dk_norm,
                                 std::byte* workspace, cudaStream_t stream);
cudaError_t prepare_attention_backward();
// wide: on Hopper, where heads of 64 and 128 dimensions have kernels on wgmma.
cudaError_t launch_attention_backward(const AttentionBackward& a, bool wide, cudaStream_t stream);
struct AttentionBackArgs;
cudaError_t prepare_attention_backward_wide();
cudaError_t launch_attention_backward_wide(const AttentionBackArgs& args, cudaStream_t stream);
cudaError_t prepare_label_loss();
cudaError_t launch_label_loss(const LabelLoss& l, cudaStream_t stream);
cudaError_t prepare_teacher_loss();
cudaError_t launch_teacher_loss(const TeacherLoss& l, cudaStream_t stream);
cudaError_t launch_embedding_backward(const EmbeddingBackward& e, cudaStream_t stream);
cudaError_t launch_scale_rows(const std::byte* from, int64_t count, float scale, std::byte* to, cudaStream_t stream);
cudaError_t launch_add_one(float* x, int64_t count, cudaStream_t stream);
cudaError_t launch_add_gradient(float* to, const float* from, int64_t count, cudaStream_t stream);
cudaError_t launch_sum_gradients(float* to, const float* a, const float* b, int64_t count, cudaStream_t stream);
// each: elements of a section, a multiple of 4.
cudaError_t launch_section_squares(const float* x, int64_t count, int64_t each, int first, int sections, double* parts,
                                   cudaStream_t stream);
cudaError_t launch_sum_sections(const double* parts, int count, double* sum, cudaStream_t stream);
cudaError_t launch_clip_factor(const double* squares, double limit, float* clip, cudaStream_t stream);
cudaError_t launch_adamw(const AdamW& a, cudaStream_t stream);
// out[j] = sum over parts of x[part][j], in an order that `parts` alone decides.
cudaError_t launch_sum_parts(const float* x, int parts, int64_t width, float* out, cudaStream_t stream);

}  // namespace nibble::cuda
