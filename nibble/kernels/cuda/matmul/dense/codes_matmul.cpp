#include "kernels/codes_matmul_cuda.h"
#include "kernels/cuda/matmul/dense/cublas_lt.h"
#include "kernels/dense_backward_cuda.h"

namespace nibble::cuda {

struct CodesProduct {
    std::shared_ptr<LtProduct> lt;
};

namespace {

cublasLtMatmulMatrixScale_t scale_mode(CodeScaling by) {
    return by == CodeScaling::tensor  ? CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F
           : by == CodeScaling::group ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
                                      : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
}

Status set_scales(const LtProduct& product, const void* of_w, const void* of_x) {
    NIBBLE_CHECK(product.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_w));
    return product.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_x);
}

}  // namespace

Result<CodesPlan> plan_codes_matmul(const CodesShape& s, const DeviceInfo& device) {
    if (s.m < 1 || s.n < 8 || s.n % 8 || s.k < fp8_group || s.k % fp8_group)
        return fail("a product of codes: {} x {} x {}; the second a multiple of 8, the third of 128", s.m, s.n, s.k);
    NIBBLE_TRY(const auto library, CublasLt::of_training(device));
    const LtTypes types{
        .x = s.e5m2 ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3, .w = CUDA_R_8F_E4M3, .y = s.rounded ? CUDA_R_16BF : CUDA_R_32F};
    NIBBLE_TRY(auto product, LtProduct::create(library, types, s.m, s.n, s.k));
    const int8_t fast = 0;
    NIBBLE_CHECK(product->set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast));
    NIBBLE_CHECK(product->set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(s.b)));
    NIBBLE_CHECK(product->set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(s.a)));
    // The heuristics check whether pointers are set but do not read the data.
    auto* const somewhere = reinterpret_cast<const void*>(uintptr_t{4096});
    NIBBLE_CHECK(set_scales(*product, somewhere, somewhere));
    NIBBLE_CHECK(product->choose(back_workspace_bytes, LtProduct::out_of_place));
    return CodesPlan{s, std::make_shared<CodesProduct>(CodesProduct{std::move(product)})};
}

Status codes_matmul(const CodesPlan& plan, const CodesOperand& a, const CodesOperand& b, void* d, bool add,
                    std::byte* workspace, const Stream& stream) {
    for (const void* p :
         {static_cast<const void*>(a.codes), static_cast<const void*>(a.scales), static_cast<const void*>(b.codes),
          static_cast<const void*>(b.scales), static_cast<const void*>(d), static_cast<const void*>(workspace)})
        if (!p || reinterpret_cast<uintptr_t>(p) % 16)
            return fail("a product of codes: device pointers must be 16-byte aligned");
    const LtProduct& product = *plan.product->lt;
    NIBBLE_CHECK(set_scales(product, b.scales, a.scales));
    return product.run(1.0f, a.codes, b.codes, d, workspace, static_cast<cudaStream_t>(stream.handle()),
                       add ? 1.0f : 0.0f);
}

}  // namespace nibble::cuda
