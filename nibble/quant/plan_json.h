// A plan for programs: what `nibble quantize --dry-run --json` prints.
#pragma once

#include "base/json.h"
#include "quant/plan.h"

namespace nibble {

// {"recipe", "weights_only", "kv_cache", "totals": {...}, "tensors": [{"tensor", "shape", "format", "inputs", "method",
// "reason", ...}], "warnings", "needs_activations"}. Sizes are those of codes and scales, without file headers.
Json to_json(const Plan& plan);

// Bytes of all tensors as the plan stores them: codes, block scales and tensor scales, or what they are now.
int64_t planned_bytes(const Plan& plan);

}  // namespace nibble
