// What nibble uses of cuBLASLt, from a library that is opened when it is asked for: programs run without it.
#pragma once

#include "base/error.h"

#include <cublasLt.h>

#include <memory>

namespace nibble::cuda {

struct CublasLt {
    void* shared_object = nullptr;
    cublasLtHandle_t handle = nullptr;
    decltype(&cublasLtDestroy) destroy = nullptr;
    decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
    decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
    decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
    decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
    decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
    decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
    decltype(&cublasLtMatmul) matmul = nullptr;

    ~CublasLt();
    // Of the current device. Error: not found, or it lacks a function.
    static Result<std::shared_ptr<CublasLt>> open();
};

// y [m, n] FP32 = alpha x [m, k] times w [n, k] transposed, all row-major. cuBLASLt counts by columns, so its A is w.
struct LtProduct {
    std::shared_ptr<CublasLt> lt;
    int64_t m = 0, n = 0, k = 0;
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
    cublasLtMatmulPreference_t preference = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
    size_t workspace_bytes = 0;

    explicit LtProduct(std::shared_ptr<CublasLt> library) : lt(std::move(library)) {}
    LtProduct(const LtProduct&) = delete;
    LtProduct& operator=(const LtProduct&) = delete;
    ~LtProduct();
    // `type`: of w and x. Then set(), what else there is to say, and choose().
    static Result<std::shared_ptr<LtProduct>> create(const std::shared_ptr<CublasLt>& library, cudaDataType_t type,
                                                     int64_t m, int64_t n, int64_t k);
    template <class T>
    Status set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
        return set(attribute, &value, sizeof value);
    }
    // What the heuristics put first. Error: there is no kernel.
    Status choose(int64_t workspace);
    Status run(float alpha, const void* x_at, const void* w_at, float* y_at, void* workspace,
               cudaStream_t stream) const;

private:
    Status set(cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes);
};

}  // namespace nibble::cuda
