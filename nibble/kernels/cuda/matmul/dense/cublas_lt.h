// The part of cuBLASLt in use, from a library opened on demand: programs run without it.
#pragma once

#include "base/error.h"
#include "tensor/device.h"

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
    // For the current device. Errors: the library is not found or lacks a function.
    static Result<std::shared_ptr<CublasLt>> open();
    // One instance for all products of training on a device, which lives until the process ends.
    static Result<std::shared_ptr<CublasLt>> of_training(const DeviceInfo& device);
};

struct LtTypes {
    cudaDataType_t x, w, y = CUDA_R_32F;
};

// y [m, n] = alpha x [m, k] times w [n, k] transposed (+ beta y), row-major, FP32 sums. cuBLASLt is column-major, so
// its A is w.
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
    // Afterwards call set() for further attributes, and choose().
    static Result<std::shared_ptr<LtProduct>> create(const std::shared_ptr<CublasLt>& library, const LtTypes& types,
                                                     int64_t m, int64_t n, int64_t k);
    template <class T>
    Status set(cublasLtMatmulDescAttributes_t attribute, const T& value) const {
        return set(attribute, &value, sizeof value);
    }
    // Chooses the first algorithm of the heuristics. `reductions`: how parts of K may be added (out_of_place: in a
    // fixed order, without atomics). Error: there is no kernel.
    static constexpr uint32_t any_reduction = CUBLASLT_REDUCTION_SCHEME_MASK;
    static constexpr uint32_t out_of_place = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    Status choose(int64_t workspace, uint32_t reductions = any_reduction);
    Status run(float alpha, const void* x_at, const void* w_at, void* y_at, void* workspace, cudaStream_t stream,
               float beta = 0.0f) const;

private:
    Status set(cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes) const;
};

}  // namespace nibble::cuda
