// d [m, n] = a [m, k] times b [n, k] transposed on the FP8 tensor cores. Both operands are 8-bit codes along k from
// cast_codes() of cast_cuda.h; the product applies the scales. Uses cuBLASLt with the first kernel of its heuristics,
// chosen once per plan. Fast accumulation is off: sums of 128 columns or fewer are added in FP32 registers; the tensor
// core itself keeps about 14 bits. No atomics, so the bits are the same every time.
//
// Pointers are device pointers, 16-byte aligned. codes_matmul() queues work and returns at once.
#pragma once

#include "base/checked.h"
#include "formats/training.h"
#include "kernels/cast_args.h"
#include "tensor/device.h"

#include <compare>
#include <memory>

namespace nibble::cuda {

enum class CodeScaling : uint8_t { tensor, group, tile };  // one scale; one per 1 x 128; one per 128 x 128

// Layout: group [k / 128, rows rounded up to a multiple of 4]; tile [rows / 128, k / 128 rounded up to a multiple of
// 4].
inline CodeScales code_scales(float* at, int64_t rows, int64_t k, CodeScaling by) {
    if (by == CodeScaling::tile) return {at, round_up<int64_t>((k + fp8_group - 1) / fp8_group, 4), 1};
    return {at, 1, round_up<int64_t>(rows, 4)};
}
inline int64_t code_scale_count(int64_t rows, int64_t k, CodeScaling by) {
    const auto groups = [](int64_t n) { return (n + fp8_group - 1) / fp8_group; };
    if (by == CodeScaling::tensor) return 1;
    return by == CodeScaling::tile ? groups(rows) * round_up<int64_t>(groups(k), 4)
                                   : groups(k) * round_up<int64_t>(rows, 4);
}

struct CodesShape {
    int64_t m = 0, n = 0, k = 0;                                   // n: a multiple of 8, k: a multiple of 128
    bool e5m2 = false;                                             // a's codes, else E4M3; b's are E4M3
    CodeScaling a = CodeScaling::tensor, b = CodeScaling::tensor;  // not both tile
    bool rounded = false;                                          // d BF16, else FP32
    auto operator<=>(const CodesShape&) const = default;
};
struct CodesProduct;
struct CodesPlan {
    CodesShape shape;
    std::shared_ptr<const CodesProduct> product;
};
// Errors: the library is absent, or has no kernel for the shape.
Result<CodesPlan> plan_codes_matmul(const CodesShape& shape, const DeviceInfo& device);

struct CodesOperand {
    const std::byte* codes = nullptr;
    const float* scales = nullptr;  // factors of the codes
};
// `add`: d += it. workspace: back_workspace_bytes of dense_backward_cuda.h.
Status codes_matmul(const CodesPlan& plan, const CodesOperand& a, const CodesOperand& b, void* d, bool add,
                    std::byte* workspace, const Stream& stream);

}  // namespace nibble::cuda
