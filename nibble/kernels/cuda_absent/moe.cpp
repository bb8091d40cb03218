// The twin of kernels/cuda/moe/moe.cpp in a build without CUDA.
#include "kernels/moe_cuda.h"

namespace nibble::cuda {

namespace {

Error absent() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

Status route(const RouterConfig&, const float*, const float*, int64_t, const Routing&, bool, const Stream&) {
    return absent();
}
Status combine_experts(const CombineExperts&, const Routing&, bool, const Stream&) { return absent(); }

}  // namespace nibble::cuda
