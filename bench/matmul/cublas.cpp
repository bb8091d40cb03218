#include "matmul/cublas.h"

#include <cublas_v2.h>
#include <dlfcn.h>

namespace nibble::bench {
namespace {

// The header overloads cublasGemmEx, so decltype cannot name it.
using Gemm = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*,
                                const void*, cudaDataType, int, const void*, cudaDataType, int, const void*, void*,
                                cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);

}  // namespace

struct Cublas::Library {
    void* shared_object = nullptr;
    cublasHandle_t handle = nullptr;
    decltype(&cublasDestroy_v2) destroy = nullptr;
    Gemm gemm = nullptr;

    ~Library() {
        if (handle) destroy(handle);
        if (shared_object) dlclose(shared_object);
    }
};

Result<Cublas> Cublas::open(const std::string& path, const Stream& stream) {
    auto library = std::make_shared<Library>();
    library->shared_object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library->shared_object) return fail("cuBLAS: {}", dlerror());
    const auto create = reinterpret_cast<decltype(&cublasCreate_v2)>(dlsym(library->shared_object, "cublasCreate_v2"));
    const auto set_stream =
        reinterpret_cast<decltype(&cublasSetStream_v2)>(dlsym(library->shared_object, "cublasSetStream_v2"));
    library->destroy = reinterpret_cast<decltype(&cublasDestroy_v2)>(dlsym(library->shared_object, "cublasDestroy_v2"));
    library->gemm = reinterpret_cast<Gemm>(dlsym(library->shared_object, "cublasGemmEx"));
    if (!create || !set_stream || !library->destroy || !library->gemm) return fail("cuBLAS: {} lacks functions", path);
    if (create(&library->handle) != CUBLAS_STATUS_SUCCESS) return fail("cuBLAS: cublasCreate failed");
    if (set_stream(library->handle, static_cast<cudaStream_t>(stream.handle())) != CUBLAS_STATUS_SUCCESS)
        return fail("cuBLAS: cublasSetStream failed");
    return Cublas(std::move(library));
}

Status Cublas::multiply(int64_t m, int64_t n, int64_t k, const std::byte* x, const std::byte* w, float* y) const {
    const float one = 1.0f, zero = 0.0f;
    const auto rows = static_cast<int>(n), tokens = static_cast<int>(m), depth = static_cast<int>(k);
    const cublasStatus_t status =
        library_->gemm(library_->handle, CUBLAS_OP_T, CUBLAS_OP_N, rows, tokens, depth, &one, w, CUDA_R_16BF, depth, x,
                       CUDA_R_16BF, depth, &zero, y, CUDA_R_32F, rows, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (status != CUBLAS_STATUS_SUCCESS) return fail("cuBLAS: cublasGemmEx returned {}", static_cast<int>(status));
    return Ok{};
}

}  // namespace nibble::bench
