// W4A16 records (kernels/w4a16_matmul_cuda.h) on the emulated GPU: not supported, so models with NVFP4 weights and BF16
// inputs are rejected.
#include "kernels/w4a16_matmul_cuda.h"

namespace nibble::cuda {

namespace {

Error no_records() { return fail("the emulated GPU has no W4A16 records"); }

}  // namespace

int MatmulTiling::most_parts() const { return 0; }
Result<MatmulPlan> plan_matmul(const MatmulProblem&, const DeviceInfo&, const MatmulTiling&) { return no_records(); }
KernelChoice describe(const MatmulPlan&) { return {}; }
int64_t packed_bytes(int64_t, int64_t) { return 0; }
Status prepack(const QuantView&, int64_t, const PackedSpan&, uint32_t*, const Stream&, const RowInterleave&) {
    return no_records();
}
Status unpack(const PackedMatrix&, const QuantSpan&, const Stream&) { return no_records(); }
Status permute(const MatmulPlan&, const std::byte*, std::byte*, const MatmulOptions&, const Stream&) {
    return no_records();
}
Status matmul(const MatmulPlan&, const std::byte*, const PackedMatrix&, const MatmulFactors&, float*, std::byte*,
              const MatmulOptions&, const Stream&) {
    return no_records();
}
bool takes_side(const MatmulPlan&, const Operand&) { return false; }
bool norms_few_rows(const Operand&) { return false; }
Status norm_matmul(const MatmulOptions::Norm&, const Operand&, float*, bool, const Stream&) { return no_records(); }

Status prepare_grouped_matmul(const DeviceInfo&) { return Ok{}; }
bool takes_one_token(const RouterConfig&, const PackedExperts&) { return false; }
bool takes_dense(const RouterConfig&, const PackedExperts&, const PackedMatrix&) { return false; }
bool takes_combine(const RouterConfig&, const PackedExperts&) { return false; }
Status grouped_matmul(const ExpertsInput&, const PackedExperts&, const ExpertsOutput&, bool, const Stream&) {
    return no_records();
}
Result<KernelChoice> describe_grouped_matmul(const ExpertsInput&, const PackedExperts&, const ExpertsOutput&) {
    return no_records();
}

}  // namespace nibble::cuda
