// The twin of kernels/cuda/ssm/ssm_backward.cpp in a build without CUDA.
#include "kernels/train_mamba_cuda.h"

namespace nibble::cuda {

namespace {

Error no_mamba_training() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

bool has_mamba_backward(const MambaShape&) { return false; }
int64_t mamba_backward_workspace(const MambaShape&, int64_t) { return 0; }
Status mamba_backward(const MambaBackward&, const Stream&) { return no_mamba_training(); }
Status mamba_parameters(const MambaShape&, const float*, const float*, float*, float*, const Stream&) {
    return no_mamba_training();
}

}  // namespace nibble::cuda
