// The twin of kernels/cuda/product/fp8/scaled_mm.cpp in a build without CUDA.
#include "kernels/scaled_mm_cuda.h"

namespace nibble::cuda {

namespace {

Error absent() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

Result<ScaledMmPlan> plan_scaled_mm(int64_t, int64_t, int64_t, const DeviceInfo&) { return absent(); }
Status scaled_mm(const ScaledMmPlan&, const ScaledMatrix&, const ScaledMatrix&, float, float*, std::byte*,
                 const Stream&) {
    return absent();
}

}  // namespace nibble::cuda
