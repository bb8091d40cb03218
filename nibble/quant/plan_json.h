// A plan as JSON: the output of `nibble quantize --dry-run --json`.
#pragma once

#include "base/json.h"
#include "quant/plan.h"

namespace nibble {

// Returns {"recipe", "weights_only", "kv_cache", "totals": {...}, "tensors": [{"tensor", "shape", "format", "inputs",
// "method", "reason", ...}], "warnings", "needs_activations"}. Sizes are those of codes and scales in bytes, without
// file headers.
Json to_json(const Plan& plan);

// Returns the bytes of all tensors after quantization: codes, block scales and tensor scales; for unchanged tensors
// their current size.
int64_t planned_bytes(const Plan& plan);
int64_t planned_bytes(const PlanEntry& entry);  // Returns the planned bytes of one tensor.

// An upper bound for the bytes of the reports, the model card and the job's journal.
int64_t report_bytes(const Plan& plan);

}  // namespace nibble
