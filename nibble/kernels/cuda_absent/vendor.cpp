// The twin of kernels/cuda/product/dense/vendor.cpp in a build without CUDA.
#include "kernels/vendor_cuda.h"

namespace nibble::cuda {

namespace {

Error absent() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

Result<std::shared_ptr<CublasLt>> open_vendor(const DeviceInfo&) { return absent(); }
Result<VendorPlan> plan_vendor_product(const std::shared_ptr<CublasLt>&, const VendorProblem&) { return absent(); }
Status vendor_product(const VendorPlan&, const std::byte*, const std::byte*, float*, std::byte*, const Stream&) {
    return absent();
}

}  // namespace nibble::cuda
