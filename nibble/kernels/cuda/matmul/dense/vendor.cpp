#include "kernels/vendor_cuda.h"

#include "kernels/cuda/matmul/dense/cublas_lt.h"
#include "tensor/cuda/call.h"

namespace nibble::cuda {
namespace {

constexpr int64_t lt_workspace = int64_t{32} << 20;

}  // namespace

Result<std::shared_ptr<CublasLt>> open_vendor(const DeviceInfo& device) {
    const CurrentDevice current(device.index);
    NIBBLE_CHECK(current.status());
    return CublasLt::open();
}

Result<VendorPlan> plan_vendor_product(const std::shared_ptr<CublasLt>& library, const VendorProblem& problem) {
    const cudaDataType_t type = problem.e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    NIBBLE_TRY(auto product, LtProduct::create(library, {type, type}, problem.m, problem.n, problem.k));
    if (problem.e4m3) {
        const int8_t fast = 1;
        NIBBLE_CHECK(product->set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast));
    }
    NIBBLE_CHECK(product->choose(lt_workspace));
    return VendorPlan{problem, lt_workspace, std::move(product)};
}

Status vendor_product(const VendorPlan& plan, const std::byte* x, const std::byte* w, float* y, std::byte* workspace,
                      const Stream& stream) {
    return plan.product->run(1.0f, x, w, y, workspace, static_cast<cudaStream_t>(stream.handle()));
}

}  // namespace nibble::cuda
