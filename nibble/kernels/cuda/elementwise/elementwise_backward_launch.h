// The kernels of the backward pass of norms, activations, rotary positions and the embedding, and of sums over tokens.
// The host side checks arguments before it calls these.
#pragma once

#include "kernels/elementwise_backward_args.h"

#include <cuda_runtime_api.h>

namespace nibble::cuda {

// Number of thread blocks of kernels that sum over tokens, the parts of the first stage. Any number is correct; this
// one fills an H200 eight times.
inline constexpr int sum_parts = 1056;

// The same for column_sums(), whose rows are cheap to read.
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
cudaError_t launch_embedding_backward(const EmbeddingBackward& e, cudaStream_t stream);
cudaError_t launch_scale_rows(const std::byte* from, int64_t count, float scale, std::byte* to, cudaStream_t stream);
cudaError_t launch_add_one(float* x, int64_t count, cudaStream_t stream);
// out[j] = sum over parts of x[part][j], in an order that depends on `parts` only.
cudaError_t launch_sum_parts(const float* x, int parts, int64_t width, float* out, cudaStream_t stream);

}  // namespace nibble::cuda
