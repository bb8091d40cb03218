// Computes the stored scales of a unit from the maxima of its members, by Model Optimizer's rules.
#pragma once

#include "quant/plan.h"

#include <span>

namespace nibble {

// Returns true if one multiplier is searched for the whole tensor before its scales are fixed.
bool searches_tensor(const PlanEntry& entry);

// Returns true if computing codes requires the maximum of the whole tensor (or of its group).
bool needs_tensor_amax(const PlanEntry& entry);

struct MemberScale {
    const PlanEntry* entry = nullptr;
    float own_amax = 0;              // largest |weight|
    std::span<const double> losses;  // loss per multiplier of the search; set if searches_tensor()
    float multiplier = 1;            // result: the chosen multiplier
    bool blind = false;              // result: all multipliers have equal losses
    TensorAmax amax;                 // result
    float tensor_scale = 1;          // result
};

// Sets amax.search to the maximum of the search group.
void set_search_maxima(std::span<MemberScale> members);
// Called after the searches. Sets multiplier (the first with the least loss, summed over the search group), amax.store
// (the maximum of the scale group, multiplied) and tensor_scale.
void set_stored_scales(std::span<MemberScale> members);

}  // namespace nibble
