// The twin of kernels/cuda/product/dense/codes_product.cpp in a build without CUDA.
#include "kernels/train_codes_cuda.h"

namespace nibble::cuda {
namespace {

Error no_codes() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

Result<CodesPlan> plan_codes_product(const CodesShape&, const DeviceInfo&) { return no_codes(); }
Status codes_product(const CodesPlan&, const CodesOperand&, const CodesOperand&, void*, bool, std::byte*,
                     const Stream&) {
    return no_codes();
}

}  // namespace nibble::cuda
