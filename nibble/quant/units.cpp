#include "quant/units.h"

#include <fmt/ranges.h>

#include <map>
#include <numeric>

namespace nibble {
namespace {

// Union-find over entries; the smallest index is the root.
class Sets {
public:
    explicit Sets(size_t n) : parent_(n) { std::iota(parent_.begin(), parent_.end(), size_t{0}); }
    size_t root(size_t i) {
        while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
        return i;
    }
    void join(size_t a, size_t b) {
        a = root(a);
        b = root(b);
        parent_[std::max(a, b)] = std::min(a, b);
    }

private:
    std::vector<size_t> parent_;
};

// Error: members of a group differ in format or in how their scales are computed. An engine or a search treats them as
// one matrix.
Status check_groups(const Plan& plan) {
    for (const auto key : {&PlanEntry::scale_group, &PlanEntry::search_group}) {
        std::map<std::string_view, const PlanEntry*> first;
        for (const PlanEntry& entry : plan.entries) {
            if ((entry.*key).empty() || entry.spec.format == Format::none) continue;
            const PlanEntry& leader = *first.emplace(entry.*key, &entry).first->second;
            if (leader.spec != entry.spec || leader.solver != entry.solver)
                return fail("{} ({}) and {} ({}) share their scales, so they need one format: change the recipe",
                            leader.tensor, method_text(leader), entry.tensor, method_text(entry));
        }
    }
    return Ok{};
}

}  // namespace

std::vector<Unit> make_units(const Plan& plan) {
    const size_t n = plan.entries.size();
    Sets sets(n);
    std::map<std::string_view, size_t> scale_groups, search_groups;
    for (size_t i = 0; i < n; ++i) {
        const PlanEntry& entry = plan.entries[i];
        if (entry.spec.format == Format::none) continue;
        if (!entry.scale_group.empty()) sets.join(i, scale_groups.emplace(entry.scale_group, i).first->second);
        if (!entry.search_group.empty()) sets.join(i, search_groups.emplace(entry.search_group, i).first->second);
    }
    std::vector<Unit> by_root(n), units;
    for (size_t i = 0; i < n; ++i) by_root[sets.root(i)].push_back(i);
    for (Unit& unit : by_root)
        if (!unit.empty()) units.push_back(std::move(unit));
    return units;
}

Status check_plan(const Checkpoint& source, const Plan& plan) {
    NIBBLE_CHECK(check_groups(plan));
    const auto tensors = source.tensors();
    if (tensors.size() != plan.entries.size())
        return fail("the plan has {} tensors, the checkpoint {}: make a new plan", plan.entries.size(), tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
        const PlanEntry& entry = plan.entries[i];
        if (entry.tensor != tensors[i].name || entry.shape != tensors[i].shape || entry.dtype != tensors[i].dtype)
            return fail(
                "the plan's tensor {} is '{}', the checkpoint's '{}', or their shapes or types differ: make a new plan",
                i, entry.tensor, tensors[i].name);
        if (entry.spec.format == Format::none) continue;
        NIBBLE_CHECK(check(entry.spec).within(entry.tensor));
        if (!tensors[i].quantized() && !is_plain_float(entry.dtype))
            return fail("{}: {} cannot be quantized to {}; exclude it in the recipe", entry.tensor,
                        dtype_name(entry.dtype), format_name(entry.spec.format));
        if (entry.shape.size() != 2 || entry.rows() == 0 || !format_fits(entry.spec.format, entry.cols()))
            return fail("{}: shape [{}] cannot be quantized to {}; exclude it in the recipe", entry.tensor,
                        fmt::join(entry.shape, ", "), format_name(entry.spec.format));
    }
    return Ok{};
}

std::string plan_identity(const Plan& plan) {
    std::string text = fmt::format("kv {} weights_only {}\n", kv_name(plan.kv), plan.weights_only);
    for (const PlanEntry& e : plan.entries) {
        const WeightSpec& s = e.spec;
        text +=
            fmt::format("{} [{}] {} {} {} {} {} {} {} {} {} {} {} '{}' '{}' '{}' {}\n", e.tensor,
                        fmt::join(e.shape, ","), dtype_name(e.dtype), format_name(s.format), s.static_scales,
                        s.normalization, static_cast<int>(s.search.kind), s.search.start, s.search.stop, s.search.step,
                        static_cast<int>(s.arithmetic), dtype_name(s.weights), activation_name(e.activation),
                        e.scale_group, e.search_group, e.input_group, e.listed_module);
        if (e.solver) text += fmt::format("  by {}\n", to_string(e.solver));
    }
    return text;
}

}  // namespace nibble
