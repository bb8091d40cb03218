// Products of cuBLASLt on a GPU, opened at run time if present, as a baseline for benchmarks. Models never use them.
#pragma once

#include "tensor/device.h"

#include <memory>

namespace nibble::cuda {

struct CublasLt;   // the library with a handle
struct LtProduct;  // a problem and the first algorithm of the library's heuristics

// Error: the library cannot be opened; states the reason.
Result<std::shared_ptr<CublasLt>> open_vendor(const DeviceInfo& device);

struct VendorProblem {
    int64_t m = 0, n = 0, k = 0;
    bool e4m3 = false;  // operands; otherwise BF16. Sums of E4M3 use fast accumulation, about 14 bits
};
struct VendorPlan {
    VendorProblem problem;
    int64_t workspace_bytes = 0;
    std::shared_ptr<const LtProduct> product;
};
// Error: the library has no kernel for the problem.
Result<VendorPlan> plan_vendor_product(const std::shared_ptr<CublasLt>& library, const VendorProblem& problem);
// y [m, n] FP32 = x [m, k] times w [n, k] transposed, row-major, 16-byte aligned. Queues work and returns at once.
Status vendor_product(const VendorPlan& plan, const std::byte* x, const std::byte* w, float* y, std::byte* workspace,
                      const Stream& stream);

}  // namespace nibble::cuda
