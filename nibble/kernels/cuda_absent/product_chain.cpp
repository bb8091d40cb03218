// The twin of kernels/cuda/product/chain/product_chain.cpp in a build without CUDA.
#include "kernels/product_chain_cuda.h"

namespace nibble::cuda {

bool takes_product_chain(const ProductChain&, const DeviceInfo&) { return false; }
int64_t product_chain_bytes(const ProductChain&) { return 0; }
Status chain_products(const ProductChain&, bool, const DeviceInfo&, const Stream&) {
    return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu");
}

}  // namespace nibble::cuda
