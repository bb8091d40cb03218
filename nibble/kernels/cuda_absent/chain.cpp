// The twin of kernels/cuda/chain.cpp in a build without CUDA.
#include "kernels/chain_cuda.h"

namespace nibble::cuda {

bool takes_chain(const Chain&, const DeviceInfo&) { return false; }
int64_t chain_code_bytes(const Chain&) { return 0; }
Status chain_products(const Chain&, bool, const DeviceInfo&, const Stream&) {
    return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu");
}

}  // namespace nibble::cuda
