// The kernels of a forward pass against their CPU twins: bits where the operation is the same, distance from double
// precision and equal bits across batches where it is a product.
#pragma once

#include "bench/kit.h"

namespace nibble::bench {

Result<std::vector<Check>> check_elementwise(const Kit& kit);
Result<std::vector<Check>> check_products(const Kit& kit, bool small);
Result<std::vector<Check>> check_grouped(const Kit& kit, bool small);
Result<std::vector<Check>> check_expert_codes(const Kit& kit, bool small);
Result<std::vector<Check>> check_inputs(const Kit& kit);
Result<std::vector<Check>> check_code_rows(const Kit& kit);
Result<std::vector<Check>> check_chains(const Kit& kit);
Result<std::vector<Check>> check_experts(const Kit& kit);
Result<std::vector<Check>> check_mamba(const Kit& kit);
Result<std::vector<Check>> check_observers(const Kit& kit);
Result<std::vector<Check>> check_sampling(const Kit& kit);
Result<std::vector<Check>> check_scaled_mm(const Kit& kit);

}  // namespace nibble::bench
