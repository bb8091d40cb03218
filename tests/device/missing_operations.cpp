// Kernels of decoding and of benchmarks that the emulated GPU does not have.
#include "kernels/fused_decode_cuda.h"
#include "kernels/sampling_cuda.h"
#include "kernels/scaled_mm_cuda.h"
#include "kernels/vendor_cuda.h"

namespace nibble::cuda {

namespace {

Error missing_operation() { return fail("the emulated GPU does not have this kernel"); }

}  // namespace

// ---- fused_decode_cuda.h -------------------------------------------------------------------------------------------

bool takes_fused_decode(const FusedDecode&, const DeviceInfo&) { return false; }
int64_t fused_decode_bytes(const FusedDecode&) { return 0; }
Status run_fused_decode(const FusedDecode&, bool, const DeviceInfo&, const Stream&) { return missing_operation(); }

// ---- sampling_cuda.h ------------------------------------------------------------------------------------------------

Status sample(const Sampling&, bool, const Stream&) { return missing_operation(); }

Status carry_tokens(const CarriedToken*, int64_t, const ChosenToken*, int32_t*, const Stream&) {
    return missing_operation();
}

// ---- vendor_cuda.h --------------------------------------------------------------------------------------------------

Result<std::shared_ptr<CublasLt>> open_vendor(const DeviceInfo&) { return missing_operation(); }
Result<VendorPlan> plan_vendor_product(const std::shared_ptr<CublasLt>&, const VendorProblem&) {
    return missing_operation();
}
Status vendor_product(const VendorPlan&, const std::byte*, const std::byte*, float*, std::byte*, const Stream&) {
    return missing_operation();
}

// ---- scaled_mm_cuda.h -----------------------------------------------------------------------------------------------

Result<ScaledMmPlan> plan_scaled_mm(int64_t, int64_t, int64_t, const DeviceInfo&) { return missing_operation(); }
Status scaled_mm(const ScaledMmPlan&, const ScaledMatrix&, const ScaledMatrix&, float, float*, std::byte*,
                 const Stream&) {
    return missing_operation();
}

}  // namespace nibble::cuda
