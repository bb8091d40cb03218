// The twin of kernels/cuda/optimizer/optimizer.cpp in a build without CUDA.
#include "kernels/train_optimizer_cuda.h"

namespace nibble::cuda {
namespace {

Error no_optimizer() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

Status adamw_update(const NarrowAdamW&, const Stream&) { return no_optimizer(); }
int64_t muon_workspace(int64_t, int64_t) { return 0; }
Status muon_update(const Muon&, const Stream&) { return no_optimizer(); }

}  // namespace nibble::cuda
