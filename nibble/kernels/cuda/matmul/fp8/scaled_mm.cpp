#include "kernels/scaled_mm_cuda.h"

#include "base/checked.h"
#include "kernels/cuda/matmul/bf16/operand_launch.h"
#include "kernels/cuda/matmul/dense/cublas_lt.h"
#include "kernels/cuda/primitives/launch_checks.h"
#include "kernels/operand_matmul_cuda.h"

namespace nibble::cuda {
namespace {

constexpr int64_t lt_workspace = int64_t{32} << 20;

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }
int64_t rows_bytes(const ScaledMmPlan& p) { return round_up<int64_t>(p.m * p.k * 2, 256); }

// Codes times block scales as BF16: row-major, or as tiles of an operand.
Status decode(const ScaledMatrix& w, uint16_t* rows, uint8_t* tiles, const Stream& stream) {
    return cuda_status(launch_make_bf16_operand({.from = w.codes,
                                                 .block_scales = w.scales,
                                                 .rows = w.rows,
                                                 .cols = w.cols,
                                                 .tiles = tiles,
                                                 .kind = 4,
                                                 .block = 16,
                                                 .swizzled = true,
                                                 .rows_out = rows},
                                                queue_of(stream)),
                       "scaled_mm: kernel launch");
}

Status emulate(const ScaledMmPlan& p, const ScaledMatrix& a, const ScaledMatrix& b, float alpha, float* d,
               std::byte* workspace, const Stream& stream) {
    std::byte* const tiles = workspace + rows_bytes(p);
    NIBBLE_CHECK(decode(a, reinterpret_cast<uint16_t*>(workspace), nullptr, stream));
    NIBBLE_CHECK(fill_device(tiles, 0, operand_bytes(p.n, p.k), stream));
    NIBBLE_CHECK(decode(b, nullptr, reinterpret_cast<uint8_t*>(tiles), stream));
    return matmul({.x = workspace, .tokens = p.m, .scale = alpha}, {.rows = p.n, .cols = p.k, .tiles = tiles}, d, 0,
                  false, stream);
}

// This path was never run on hardware.
Status run_lt(const ScaledMmPlan& p, const ScaledMatrix& a, const ScaledMatrix& b, float alpha, float* d,
              std::byte* workspace, const Stream& stream) {
    NIBBLE_TRY(const auto product, LtProduct::create(p.library, {CUDA_R_4F_E2M1, CUDA_R_4F_E2M1}, p.m, p.n, p.k));
    const cublasLtMatmulMatrixScale_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
    const void *w_scales = b.scales, *x_scales = a.scales;
    NIBBLE_CHECK(product->set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode));
    NIBBLE_CHECK(product->set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode));
    NIBBLE_CHECK(product->set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, w_scales));
    NIBBLE_CHECK(product->set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x_scales));
    NIBBLE_CHECK(product->choose(lt_workspace));
    return product->run(alpha, a.codes, b.codes, d, workspace, queue_of(stream));
}

}  // namespace

Result<ScaledMmPlan> plan_scaled_mm(int64_t m, int64_t n, int64_t k, const DeviceInfo& device) {
    if (m < 1 || n < 1 || k < 32 || k % 32 || m > INT32_MAX / 2 || n > INT32_MAX / 2 || k > INT32_MAX / 2)
        return fail("scaled_mm: {} x {} x {}, k must be a multiple of 32", m, n, k);
    ScaledMmPlan plan{.m = m, .n = n, .k = k};
    if (device.major < 10) {
        plan.workspace_bytes = rows_bytes(plan) + operand_bytes(n, k);
        return plan;
    }
    const CurrentDevice current(device.index);
    NIBBLE_CHECK(current.status());
    plan.backend = ScaledBackend::cublaslt;
    plan.workspace_bytes = lt_workspace;
    NIBBLE_TRY(plan.library, CublasLt::open());
    return plan;
}

Status scaled_mm(const ScaledMmPlan& plan, const ScaledMatrix& a, const ScaledMatrix& b, float alpha, float* d,
                 std::byte* workspace, const Stream& stream) {
    if (a.rows != plan.m || b.rows != plan.n || a.cols != plan.k || b.cols != plan.k)
        return fail("scaled_mm: [{}, {}] by [{}, {}] under a plan for {} x {} x {}", a.rows, a.cols, b.rows, b.cols,
                    plan.m, plan.n, plan.k);
    for (const void* p :
         {static_cast<const void*>(a.codes), static_cast<const void*>(a.scales), static_cast<const void*>(b.codes),
          static_cast<const void*>(b.scales), static_cast<const void*>(d), static_cast<const void*>(workspace)})
        if (!p || !aligned(p)) return fail("scaled_mm: device pointers must be 16-byte aligned");
    return plan.backend == ScaledBackend::emulated
               ? emulate(plan, a, b, alpha, d, workspace, stream)
               : run_lt(plan, a, b, alpha, d, workspace, stream).within("scaled_mm");
}

}  // namespace nibble::cuda
