#include "quant/unit_scales.h"

#include "formats/nvfp4.h"

#include <algorithm>
#include <vector>

namespace nibble {
namespace {

using Key = std::string PlanEntry::*;

// Calls visit for the member itself, or, if its key is not empty, for all members with the same key, in order.
template <class Visit>
void for_group(std::span<const MemberScale> members, const MemberScale& of, Key key, Visit visit) {
    const std::string& name = of.entry->*key;
    for (const MemberScale& m : members)
        if (&m == &of || (!name.empty() && m.entry->*key == name)) visit(m);
}

// Returns the smallest maximum whose tensor scale the output can store.
float least_amax(const PlanEntry& entry) {
    return entry.spec.format == Format::nvfp4 ? entry.least_scale * e2m1_max * entry.spec.normalization : 0.0f;
}

float found_amax(const MemberScale& m) { return searches_tensor(*m.entry) ? m.amax.search * m.multiplier : m.own_amax; }

}  // namespace

bool searches_tensor(const PlanEntry& entry) {
    const WeightSpec& spec = entry.spec;
    return !entry.solver && spec.search.kind == Search::Kind::multipliers &&
           (spec.format == Format::fp8 || (spec.format == Format::nvfp4 && !spec.static_scales));
}

bool needs_tensor_amax(const PlanEntry& entry) {
    return format_layout(entry.spec.format).tensor_scale || !entry.scale_group.empty();
}

void set_search_maxima(std::span<MemberScale> members) {
    for (MemberScale& m : members)
        for_group(members, m, &PlanEntry::search_group,
                  [&](const MemberScale& x) { m.amax.search = std::max(m.amax.search, x.own_amax); });
}

void set_stored_scales(std::span<MemberScale> members) {
    for (MemberScale& m : members) {
        if (!searches_tensor(*m.entry)) continue;
        std::vector<double> losses(m.losses.size(), 0.0);
        for_group(members, m, &PlanEntry::search_group, [&](const MemberScale& x) {
            for (size_t i = 0; i < std::min(losses.size(), x.losses.size()); ++i) losses[i] += x.losses[i];
        });
        const Search& search = m.entry->spec.search;
        const auto [least, most] = std::ranges::minmax_element(losses);
        m.blind = *least == *most && losses.size() > 1;
        m.multiplier = m.blind && search.maximum_when_blind
                           ? 1.0f
                           : search_multipliers(search)[static_cast<size_t>(least - losses.begin())];
    }
    for (MemberScale& m : members) {
        // each tile has its own scale
        if (m.entry->spec.format == Format::fp8_block128 && m.entry->scale_group.empty()) continue;
        for_group(members, m, &PlanEntry::scale_group,
                  [&](const MemberScale& x) { m.amax.store = std::max(m.amax.store, found_amax(x)); });
        if (m.amax.store > 0) m.amax.store = std::max(m.amax.store, least_amax(*m.entry));
        m.tensor_scale = tensor_scale(m.entry->spec, m.amax);
    }
}

}  // namespace nibble
