#include "quant/recipe.h"
#include "quant/search.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

namespace nibble {
namespace {

std::string yaml_quoted(std::string_view text) {
    std::string out = "'";
    for (const char c : text) out += c == '\'' ? "''" : std::string(1, c);
    return out + "'";
}

// Returns the scores of a group's candidates: "nvfp4 1.2e-3, fp8 4e-6".
std::string weighed(const SearchSpace& space, const SearchScores& scores, size_t g) {
    std::vector<std::string> parts;
    const SearchGroup& group = space.groups[g];
    for (size_t i = 0; i < group.candidates.size(); ++i)
        parts.push_back(fmt::format("{} {:.3g}", space.formats[group.candidates[i]].name, scores.values[g][i]));
    return fmt::format("{}", fmt::join(parts, ", "));
}

std::string rule(std::string_view pattern, std::string_view quantizer, std::string_view numerics) {
    return fmt::format("    - quantizer_name: {}\n      cfg: {{$import: {}}}\n",
                       yaml_quoted(fmt::format("{}{}", pattern, quantizer)), numerics);
}

}  // namespace

std::string recipe_text(const SearchSpace& space, const SearchPoint& point, std::string_view algorithm,
                        const SearchScores* scores) {
    std::set<std::string> numerics;
    for (const size_t f : point.choice)
        for (const std::string& name : {space.formats[f].weights, space.formats[f].inputs})
            if (!name.empty()) numerics.insert(name);
    std::string text = "# Made by nibble search.\n";
    if (scores)
        text += fmt::format("# Scores: {} over {} tokens of {}; the choices below sum to {:.6g}.\n",
                            method_name(scores->method), scores->tokens, scores->origin, point.score);
    text += "imports:\n  base_disable_all: configs/ptq/units/base_disable_all\n";
    for (const std::string& name : numerics) text += fmt::format("  {0}: configs/numerics/{0}\n", name);
    text += fmt::format(
        "metadata:\n  recipe_type: ptq\n  description: {}\n",
        yaml_quoted(fmt::format("mixed precision, {:.4f} effective bits (target {:.3f})", point.bits, point.target)));
    text += fmt::format("quantize:\n  algorithm: {}\n  quant_cfg:\n    - $import: base_disable_all\n", algorithm);
    for (size_t g = 0; g < space.groups.size(); ++g) {
        const SearchGroup& group = space.groups[g];
        const SearchFormat& format = space.formats[point.choice[g]];
        if (scores)
            text += fmt::format("    # {}: {}{}\n", group.name, format.name,
                                group.fixed.empty() ? fmt::format(" of {}", weighed(space, *scores, g))
                                                    : fmt::format(" ({})", group.fixed));
        if (format.weights.empty()) continue;
        for (const std::string& pattern : group.patterns) {
            text += rule(pattern, "weight_quantizer", format.weights);
            if (!format.inputs.empty()) text += rule(pattern, "input_quantizer", format.inputs);
        }
    }
    return text;
}

Result<Plan> plan_of(const SearchSpace& space, std::span<const size_t> choice,
                     std::span<const CheckpointTensor> tensors, const Json& config, const ResolveOptions& options) {
    SearchPoint point{.choice = {choice.begin(), choice.end()}};
    point.bits = point.target = space.bits(choice);
    NIBBLE_TRY(const Recipe recipe, parse_recipe(recipe_text(space, point), "search"));
    NIBBLE_TRY(Plan plan, resolve(recipe, tensors, config, options));
    size_t quantized = 0, expected = 0;
    for (size_t g = 0; g < space.groups.size(); ++g) {
        const SearchFormat& format = space.formats[choice[g]];
        const Format weights = format_from_name(format.weights).value_or(Format::none);
        if (weights != Format::none) expected += space.groups[g].tensors.size();
        for (const size_t i : space.groups[g].tensors)
            if (plan.entries[i].spec.format != weights)
                return fail("{}: the search chose {} for {}, the recipe makes it {} ({})", plan.entries[i].tensor,
                            format.name, space.groups[g].name, format_name(plan.entries[i].spec.format),
                            plan.entries[i].reason);
    }
    for (const PlanEntry& e : plan.entries) quantized += e.spec.format != Format::none;
    if (quantized != expected) return fail("the recipe quantizes {} tensors, the search chose {}", quantized, expected);
    return plan;
}

}  // namespace nibble
