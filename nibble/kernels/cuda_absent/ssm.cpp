// The twin of kernels/cuda/ssm/ssm.cpp in a build without CUDA.
#include "kernels/ssm_cuda.h"

namespace nibble::cuda {

namespace {

Error absent() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

int64_t mamba_workspace_bytes(const MambaShape&, int64_t) { return 0; }
Status mamba_step(const MambaStep&, bool, const Stream&) { return absent(); }

}  // namespace nibble::cuda
