// Times of the engine's kernels inside a replayed graph.
#pragma once

#include "bench/kit.h"
#include "device/report.h"

namespace nibble::bench {

// BF16 operands, cold L2: TB/s of what must be read, TFLOP/s.
Status time_products(const Kit& kit, Report& report);
// Operands of E4M3 codes.
Status time_codes(const Kit& kit, Report& report);
// Products of one token in one kernel.
Status time_chains(const Kit& kit, Report& report);
// W4A16 products of 128 experts, six a token.
Status time_grouped(const Kit& kit, Report& report);
// Grouped products of 128 experts, six a token.
Status time_experts(const Kit& kit, Report& report);

}  // namespace nibble::bench
