// dX = dY W and dW = dY^T X by cuBLASLt, which is column-major: a row-major [a, b] is its [b, a] with leading dimension
// b.
#include "kernels/cuda/matmul/dense/cublas_lt.h"
#include "kernels/dense_backward_cuda.h"
#include "tensor/cuda/call.h"

namespace nibble::cuda {
namespace {

Status lt_call(cublasStatus_t status, std::string_view what) {
    if (status == CUBLAS_STATUS_SUCCESS) return Ok{};
    return fail("{}: status {}", what, static_cast<int>(status));
}

// d [m, n] = a b, column-major; b is used unchanged or transposed.
class BackProduct {
public:
    BackProduct() = default;
    BackProduct(const BackProduct&) = delete;
    BackProduct& operator=(const BackProduct&) = delete;
    ~BackProduct() {
        if (!lt_) return;
        for (cublasLtMatrixLayout_t layout : {a_, b_, d_})
            if (layout) lt_->layout_destroy(layout);
        if (operation_) lt_->desc_destroy(operation_);
    }

    Status make(std::shared_ptr<CublasLt> library, int64_t m, int64_t n, int64_t k, bool b_transposed,
                cudaDataType_t type, bool scaled) {
        lt_ = std::move(library);
        const CublasLt& lt = *lt_;
        NIBBLE_CHECK(lt_call(lt.desc_create(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate"));
        const cublasOperation_t of_b = b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
        NIBBLE_CHECK(lt_call(lt.desc_set(operation_, CUBLASLT_MATMUL_DESC_TRANSB, &of_b, sizeof of_b),
                             "cublasLtMatmulDescSetAttribute"));
        if (scaled) {
            const cublasLtPointerMode_t mode = CUBLASLT_POINTER_MODE_DEVICE;
            NIBBLE_CHECK(lt_call(lt.desc_set(operation_, CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode, sizeof mode),
                                 "cublasLtMatmulDescSetAttribute"));
        }
        const auto um = static_cast<uint64_t>(m), un = static_cast<uint64_t>(n), uk = static_cast<uint64_t>(k);
        NIBBLE_CHECK(lt_call(lt.layout_create(&a_, CUDA_R_16BF, um, uk, m), "cublasLtMatrixLayoutCreate"));
        NIBBLE_CHECK(lt_call(b_transposed ? lt.layout_create(&b_, CUDA_R_16BF, un, uk, n)
                                          : lt.layout_create(&b_, CUDA_R_16BF, uk, un, k),
                             "cublasLtMatrixLayoutCreate"));
        NIBBLE_CHECK(lt_call(lt.layout_create(&d_, type, um, un, m), "cublasLtMatrixLayoutCreate"));
        return choose(m, n, k);
    }
    Status run(const void* a, const void* b, void* d, bool add, const BackScale& scale, void* workspace,
               const Stream& stream) const {
        const float one = 1.0f, end = add ? 1.0f : 0.0f;
        const float* alpha = scale.factor ? scale.factor : &one;
        const float* beta = scale.factor ? scale.ends + add : &end;
        return lt_call(
            lt_->matmul(lt_->handle, operation_, alpha, a, a_, b, b_, beta, d, d_, d, d_, &algorithm_, workspace,
                        static_cast<size_t>(back_workspace_bytes), static_cast<cudaStream_t>(stream.handle())),
            "cublasLtMatmul");
    }

private:
    // Parts of K are added out of place in a fixed order, or K is not split: never with atomics.
    Status choose(int64_t m, int64_t n, int64_t k) {
        const CublasLt& lt = *lt_;
        cublasLtMatmulPreference_t preference = nullptr;
        NIBBLE_CHECK(lt_call(lt.preference_create(&preference), "cublasLtMatmulPreferenceCreate"));
        const auto bytes = static_cast<size_t>(back_workspace_bytes);
        const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
        cublasLtMatmulHeuristicResult_t best{};
        int found = 0;
        cublasStatus_t status =
            lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
        if (status == CUBLAS_STATUS_SUCCESS)
            status =
                lt.preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
        if (status == CUBLAS_STATUS_SUCCESS)
            status = lt.heuristic(lt.handle, operation_, a_, b_, d_, d_, preference, 1, &best, &found);
        lt.preference_destroy(preference);
        if (status != CUBLAS_STATUS_NOT_SUPPORTED) NIBBLE_CHECK(lt_call(status, "cublasLtMatmulAlgoGetHeuristic"));
        if (found == 0) return fail("cuBLASLt has no kernel for {} x {} x {}", m, n, k);
        algorithm_ = best.algo;
        return Ok{};
    }

    std::shared_ptr<CublasLt> lt_;
    cublasLtMatmulDesc_t operation_ = nullptr;
    cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
    cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace

struct BackProducts {
    BackProduct input, weight;
};

Result<BackPlan> plan_back_products(const BackShape& s, const DeviceInfo& device) {
    if (s.tokens < 1 || s.rows < 8 || s.cols < 8 || s.rows % 8 || s.cols % 8)
        return fail("backward products: {} tokens, [{}, {}]; rows and columns must be multiples of 8", s.tokens, s.rows,
                    s.cols);
    NIBBLE_TRY(const auto library, CublasLt::of_training(device));
    auto products = std::make_shared<BackProducts>();
    NIBBLE_CHECK(products->input.make(library, s.cols, s.tokens, s.rows, false, CUDA_R_16BF, s.scaled));
    NIBBLE_CHECK(products->weight.make(library, s.cols, s.rows, s.tokens, true, CUDA_R_32F, s.scaled));
    return BackPlan{s, std::move(products)};
}

namespace {

Status check_scale(const BackPlan& plan, const BackScale& scale) {
    if (plan.shape.scaled == (scale.factor && scale.ends)) return Ok{};
    return fail("backward products: the plan is {} a scale", plan.shape.scaled ? "with" : "without");
}

}  // namespace

Status back_input_gradient(const BackPlan& plan, const std::byte* dy, const std::byte* w, std::byte* dx,
                           std::byte* workspace, const Stream& stream, const BackScale& scale) {
    NIBBLE_CHECK(check_scale(plan, scale));
    return plan.products->input.run(w, dy, dx, false, scale, workspace, stream);
}

Status back_weight_gradient(const BackPlan& plan, const std::byte* dy, const std::byte* x, float* dw, bool add,
                            std::byte* workspace, const Stream& stream, const BackScale& scale) {
    NIBBLE_CHECK(check_scale(plan, scale));
    return plan.products->weight.run(x, dy, dw, add, scale, workspace, stream);
}

}  // namespace nibble::cuda
