// The scales of a unit: from the maxima of its members to the numbers that are stored. Rules:
// docs/reference/ptq.md 2.2, 2.3 and 5.4.
#pragma once

#include "quant/plan.h"

#include <span>

namespace nibble {

// Whether one multiplier is searched for the whole tensor, before any of its scales is fixed.
bool searches_tensor(const PlanEntry& entry);

// Whether codes need the maximum of the whole tensor (or of its group) first.
bool needs_tensor_amax(const PlanEntry& entry);

struct MemberScale {
    const PlanEntry* entry = nullptr;
    float own_amax = 0;              // of the weights
    std::span<const double> losses;  // per multiplier of the search, when searches_tensor
    float multiplier = 1;            // out: chosen
    bool blind = false;              // out: all multipliers lose alike
    TensorAmax amax;                 // out
    float tensor_scale = 1;          // out
};

// Fills amax.search: the search group's maximum.
void set_search_maxima(std::span<MemberScale> members);
// After the searches: multiplier (the first of least loss, summed over the search group), amax.store (the scale group's
// maximum, multiplied) and tensor_scale.
void set_stored_scales(std::span<MemberScale> members);

}  // namespace nibble
