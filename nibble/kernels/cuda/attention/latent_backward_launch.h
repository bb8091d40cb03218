// Kernels called by kernels/cuda/attention/latent_backward.cpp, which checks the arguments.
#pragma once

#include "kernels/attention_backward_args.h"

#include <cuda_runtime_api.h>

namespace nibble::cuda {

cudaError_t launch_latent_rows(const LatentShape& shape, const LatentRows& r, cudaStream_t stream);
cudaError_t launch_latent_backward(const LatentShape& shape, const LatentBackward& b, cudaStream_t stream);
cudaError_t launch_latent_join(const LatentJoin& j, cudaStream_t stream);

}  // namespace nibble::cuda
