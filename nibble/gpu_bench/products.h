// Benchmarks products of a weight matrix with every kernel of the GPU. A sample of the outputs is checked against
// double precision before the timing.
#pragma once

#include "gpu_bench/kernel_table.h"
#include "gpu_bench/product_kernels.h"

#include <vector>

namespace nibble::bench {

struct ProductShape {
    int64_t n = 0, k = 0;
    std::vector<int64_t> tokens;
};
// Shapes of docs/results/README.md.
std::vector<ProductShape> target_products();

// `format`: a name of product_formats(), or empty for all. Baseline: cuBLASLt's BF16 product, if available.
Status bench_products(Kit& kit, const Vendor& vendor, const std::vector<ProductShape>& shapes, std::string_view format,
                      int repeats, KernelTable& table);
std::vector<std::string_view> product_formats();
inline constexpr std::string_view product_baseline = "cuBLASLt BF16";

// Checks outputs of 64 weight rows for the first, middle and last tokens.
Result<Check> check_sample(Kit& kit, const ProductKernel& kernel);

}  // namespace nibble::bench
