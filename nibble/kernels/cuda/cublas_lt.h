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

}  // namespace nibble::cuda
