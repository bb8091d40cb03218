// The units of a quantization: tensors whose scales depend on each other form one unit, which is finished and journaled
// as a whole.
#pragma once

#include "checkpoint/checkpoint.h"
#include "quant/plan.h"

namespace nibble {

// Indices of plan entries, ascending.
using Unit = std::vector<size_t>;

// Returns the units, ordered by their first entry. Entries that share a scale group or a search group, directly or
// through other entries, form one unit; every other entry is a unit.
std::vector<Unit> make_units(const Plan& plan);

// Error: the plan and the checkpoint do not list the same tensors in the same order, or a spec does not fit its
// tensor's shape.
Status check_plan(const Checkpoint& source, const Plan& plan);

// Returns, as text, everything in the plan that determines stored bits; part of a job's identity.
std::string plan_identity(const Plan& plan);

}  // namespace nibble
