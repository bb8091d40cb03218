// The kernels of the backward pass of attention over whole rows. The host side checks arguments before it calls these.
#pragma once

#include "kernels/attention_backward_args.h"

#include <cuda_runtime_api.h>

namespace nibble::cuda {

cudaError_t prepare_attention_backward();
// wide: on Hopper, where heads of 64 and 128 dimensions have wgmma kernels.
cudaError_t launch_attention_backward(const AttentionBackward& a, bool wide, cudaStream_t stream);
struct AttentionBackArgs;
cudaError_t prepare_attention_backward_wide();
cudaError_t launch_attention_backward_wide(const AttentionBackArgs& args, cudaStream_t stream);

}  // namespace nibble::cuda
