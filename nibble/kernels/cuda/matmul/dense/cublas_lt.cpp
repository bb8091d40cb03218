#include "kernels/cuda/matmul/dense/cublas_lt.h"

#include "tensor/cuda/call.h"

#include <dlfcn.h>

namespace nibble::cuda {

CublasLt::~CublasLt() {
    if (handle) destroy(handle);
    if (shared_object) dlclose(shared_object);
}

Result<std::shared_ptr<CublasLt>> CublasLt::open() {
    auto lt = std::make_shared<CublasLt>();
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so", "/usr/local/cuda/lib64/libcublasLt.so.13"})
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

Result<std::shared_ptr<CublasLt>> CublasLt::of_training(const DeviceInfo& device) {
    // Creating a handle takes a while. It is never destroyed: at exit cuBLASLt may already have ended, and
    // cublasLtDestroy would then free memory twice.
    static std::shared_ptr<CublasLt>& library = *new std::shared_ptr<CublasLt>;
    static int of = -1;
    if (library && of == device.index) return library;
    const CurrentDevice current(device.index);
    NIBBLE_CHECK(current.status());
    NIBBLE_TRY(library, CublasLt::open().within("training on a GPU needs cuBLASLt for gradients"));
    of = device.index;
    return library;
}

namespace {

Status lt_status(cublasStatus_t status, std::string_view what) {
    if (status == CUBLAS_STATUS_SUCCESS) return Ok{};
    return fail("{} returned {}", what, static_cast<int>(status));
}

}  // namespace

LtProduct::~LtProduct() {
    if (preference) lt->preference_destroy(preference);
    for (const cublasLtMatrixLayout_t layout : {w, x, y})
        if (layout) lt->layout_destroy(layout);
    if (operation) lt->desc_destroy(operation);
}

Status LtProduct::set(cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes) const {
    return lt_status(lt->desc_set(operation, attribute, value, bytes), "cublasLtMatmulDescSetAttribute");
}

Result<std::shared_ptr<LtProduct>> LtProduct::create(const std::shared_ptr<CublasLt>& library, const LtTypes& types,
                                                     int64_t m, int64_t n, int64_t k) {
    auto p = std::make_shared<LtProduct>(library);
    p->m = m, p->n = n, p->k = k;
    const CublasLt& lt = *library;
    NIBBLE_CHECK(lt_status(lt.desc_create(&p->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate"));
    const cublasOperation_t transposed = CUBLAS_OP_T, plain = CUBLAS_OP_N;
    NIBBLE_CHECK(p->set(CUBLASLT_MATMUL_DESC_TRANSA, transposed));
    NIBBLE_CHECK(p->set(CUBLASLT_MATMUL_DESC_TRANSB, plain));
    const auto rows = static_cast<uint64_t>(n), tokens = static_cast<uint64_t>(m), depth = static_cast<uint64_t>(k);
    NIBBLE_CHECK(lt_status(lt.layout_create(&p->w, types.w, depth, rows, k), "cublasLtMatrixLayoutCreate"));
    NIBBLE_CHECK(lt_status(lt.layout_create(&p->x, types.x, depth, tokens, k), "cublasLtMatrixLayoutCreate"));
    NIBBLE_CHECK(lt_status(lt.layout_create(&p->y, types.y, rows, tokens, n), "cublasLtMatrixLayoutCreate"));
    return p;
}

Status LtProduct::choose(int64_t workspace, uint32_t reductions) {
    workspace_bytes = static_cast<size_t>(workspace);
    if (!preference) NIBBLE_CHECK(lt_status(lt->preference_create(&preference), "cublasLtMatmulPreferenceCreate"));
    NIBBLE_CHECK(lt_status(lt->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                              sizeof workspace_bytes),
                           "cublasLtMatmulPreferenceSetAttribute"));
    NIBBLE_CHECK(lt_status(
        lt->preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions),
        "cublasLtMatmulPreferenceSetAttribute"));
    cublasLtMatmulHeuristicResult_t best{};
    int found = 0;
    const cublasStatus_t status = lt->heuristic(lt->handle, operation, w, x, y, y, preference, 1, &best, &found);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) NIBBLE_CHECK(lt_status(status, "cublasLtMatmulAlgoGetHeuristic"));
    if (found == 0) return fail("cuBLASLt has no kernel for {} x {} x {}", m, n, k);
    algorithm = best.algo;
    return Ok{};
}

Status LtProduct::run(float alpha, const void* x_at, const void* w_at, void* y_at, void* workspace, cudaStream_t stream,
                      float beta) const {
    return lt_status(lt->matmul(lt->handle, operation, &alpha, w_at, w, x_at, x, &beta, y_at, y, y_at, y, &algorithm,
                                workspace, workspace_bytes, stream),
                     "cublasLtMatmul");
}

}  // namespace nibble::cuda
