// D = alpha (A SFA) (B SFB)^T on a GPU, with both operands in NVFP4 and block scales in the 128 x 4 layout of
// formats/swizzle.h: the block-scaled product of Blackwell's tensor cores.
//
// Compute capability 10.0 and above: cuBLASLt with VEC16_UE4M3 scales, opened at run time. This path compiles but was
// never run, because no such GPU was available. Below 10.0 the product is emulated: codes times block scales are exact
// in BF16, so it is the product of operand_matmul_cuda.h with one FP32 chain over k-steps of 16 columns, ascending, and
// d = sum * alpha. The bits of a row do not depend on m. Pointers are device pointers, 16-byte aligned. scaled_mm()
// queues work and returns at once.
#pragma once

#include "tensor/device.h"

#include <memory>

namespace nibble::cuda {

struct ScaledMatrix {
    int64_t rows = 0, cols = 0;       // cols: a multiple of 32
    const uint8_t* codes = nullptr;   // [rows, cols / 2], even column in the low nibble
    const uint8_t* scales = nullptr;  // swizzled_scale_bytes(rows, cols / 16)
};

enum class ScaledBackend : uint8_t { emulated, cublaslt };
struct CublasLt;  // the library with a handle

struct ScaledMmPlan {
    int64_t m = 0, n = 0, k = 0;
    ScaledBackend backend = ScaledBackend::emulated;
    int64_t workspace_bytes = 0;
    std::shared_ptr<CublasLt> library;  // set for cublaslt
};
// Errors: k is not a multiple of 32; the device needs cuBLASLt and it cannot be opened.
Result<ScaledMmPlan> plan_scaled_mm(int64_t m, int64_t n, int64_t k, const DeviceInfo& device);

// a [m, k], b [n, k], d [m, n] FP32. Call prepare_matmul() of operand_matmul_cuda.h once before.
Status scaled_mm(const ScaledMmPlan& plan, const ScaledMatrix& a, const ScaledMatrix& b, float alpha, float* d,
                 std::byte* workspace, const Stream& stream);

}  // namespace nibble::cuda
