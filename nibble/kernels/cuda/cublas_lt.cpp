#include "kernels/cuda/cublas_lt.h"

#include <dlfcn.h>

namespace nibble::cuda {

CublasLt::~CublasLt() {
    if (handle) destroy(handle);
    if (shared_object) dlclose(shared_object);
}

Result<std::shared_ptr<CublasLt>> CublasLt::open() {
    auto lt = std::make_shared<CublasLt>();
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so"})
        if ((lt->shared_object = dlopen(name, RTLD_NOW | RTLD_LOCAL))) break;
    if (!lt->shared_object) return fail("cuBLASLt cannot be opened: {}", dlerror());
    bool all = true;
    const auto find = [&](auto& function, const char* name) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(lt->shared_object, name));
        all = all && function;
    };
    decltype(&cublasLtCreate) create = nullptr;
    find(create, "cublasLtCreate");
    find(lt->destroy, "cublasLtDestroy");
    find(lt->desc_create, "cublasLtMatmulDescCreate");
    find(lt->desc_destroy, "cublasLtMatmulDescDestroy");
    find(lt->desc_set, "cublasLtMatmulDescSetAttribute");
    find(lt->layout_create, "cublasLtMatrixLayoutCreate");
    find(lt->layout_destroy, "cublasLtMatrixLayoutDestroy");
    find(lt->preference_create, "cublasLtMatmulPreferenceCreate");
    find(lt->preference_destroy, "cublasLtMatmulPreferenceDestroy");
    find(lt->preference_set, "cublasLtMatmulPreferenceSetAttribute");
    find(lt->heuristic, "cublasLtMatmulAlgoGetHeuristic");
    find(lt->matmul, "cublasLtMatmul");
    if (!all) return fail("cuBLASLt lacks functions that nibble calls");
    if (const cublasStatus_t status = create(&lt->handle); status != CUBLAS_STATUS_SUCCESS)
        return fail("cublasLtCreate returned {}", static_cast<int>(status));
    return lt;
}

}  // namespace nibble::cuda
