// The pieces a quantization is divided into: what must be decided together is one unit, finished and journaled as a
// whole.
#pragma once

#include "checkpoint/checkpoint.h"
#include "quant/plan.h"

namespace nibble {

// Indices of plan entries, ascending.
using Unit = std::vector<size_t>;

// Entries that share a scale group or a search group lie in one unit, also when only through a third; all others are
// alone. Units are ordered by their first entry.
std::vector<Unit> make_units(const Plan& plan);

// The plan and the checkpoint must list the same tensors in the same order, and every spec must fit its shape.
Status check_plan(const Checkpoint& source, const Plan& plan);

// Everything in the plan that decides a stored bit, as text; the part of a job's identity that the recipe made.
std::string plan_identity(const Plan& plan);

}  // namespace nibble
