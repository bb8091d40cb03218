// Computes dt and decay of a token and head.
#pragma once

#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/cuda/ssm/ssm_launch.h"

namespace nibble::cuda {

__device__ inline float softplus(float x) {
    const double wide = x, rest = log1p(exp(-fabs(wide)));
    return static_cast<float>(wide > 0 ? wide + rest : rest);
}
__device__ inline float step_size(const SsmArgs& args, float projected, int head) {
    return fmaxf(softplus(rounded(projected) + args.dt_bias[head]), args.dt_min);
}
__device__ inline float step_decay(const SsmArgs& args, float dt, int head) {
    return static_cast<float>(exp(static_cast<double>(dt) * args.a[head]));
}

}  // namespace nibble::cuda
