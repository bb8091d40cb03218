// Products of a weight matrix in every way that a GPU has, each checked on a sample of its outputs against double
// precision, then timed.
#pragma once

#include "bench/kernel_table.h"
#include "bench/product_kernels.h"

#include <vector>

namespace nibble::bench {

struct ProductShape {
    int64_t n = 0, k = 0;
    std::vector<int64_t> tokens;
};
// What the targets of docs/results-h200.md name.
std::vector<ProductShape> target_products();

// `format`: a name of product_formats(), or empty for all. Baseline: cuBLASLt's BF16 product, where there is one.
Status bench_products(Kit& kit, const Vendor& vendor, const std::vector<ProductShape>& shapes, std::string_view format,
                      int repeats, KernelTable& table);
std::vector<std::string_view> product_formats();
inline constexpr std::string_view product_baseline = "cuBLASLt BF16";

// Outputs of tokens at both ends and in the middle, of 64 rows of the weights.
Result<Check> check_sample(Kit& kit, const ProductKernel& kernel);

}  // namespace nibble::bench
