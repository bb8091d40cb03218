#include "quant/requantize.h"

#include "checkpoint/reciprocal.h"
#include "quant/recipe.h"
#include "quant/resolve.h"
#include "quant/trial_checkpoint.h"

#include <algorithm>
#include <map>

namespace nibble {
namespace {

// Returns the settings of the job that wrote the checkpoint; an empty object: nibble.json has none.
Result<Json> settings_of(const Checkpoint& base) {
    const std::filesystem::path file = base.path() / "nibble.json";
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(file, ignored)) return Json::object();
    NIBBLE_TRY(const Json manifest, read_json_file(file));
    const auto settings = manifest.find("settings");
    return settings != manifest.end() && settings->is_object() ? *settings : Json::object();
}

// Returns the scales of activations that the base stores, by tensor name.
ScaleTable scales_of(const Checkpoint& base) {
    ScaleTable table{.origin = base.path().string(), .values = {}};
    for (const CheckpointTensor& t : base.tensors())
        if (t.input_scale && t.name.ends_with(".weight"))
            table.values.emplace(t.name.substr(0, t.name.size() - 7) + ".input_scale", *t.input_scale);
    return table;
}

Result<Plan> plan_of(const NewWeights& weights, const Json& settings, const ScaleTable& scales) {
    const auto text = [&](const char* key) { return settings.value(key, std::string()); };
    NIBBLE_TRY(Recipe recipe, load_recipe(text("recipe")));
    for (const Json& pattern : settings.value("ignore", Json::array()))
        if (pattern.is_string()) recipe.rules.push_back(ignore_rule(pattern.get<std::string>()));
    const bool divides = text("dialect") == dialect_name(Dialect::compressed_tensors);
    return resolve(recipe, weights.tensors(), weights.config(),
                   {.weights_only = settings.value("weights_only", false),
                    .arithmetic = text("arithmetic") == "true" ? Arithmetic::true_division : Arithmetic::reciprocal,
                    .compat = text("compat") != "none",
                    .kv = "none",  // the cache's format is that of the running model
                    .embeddings = format_from_name(text("embeddings")).value_or(Format::none),
                    .least_scale = divides ? least_divided_scale : 0.0f,
                    .scales = &scales.values});
}

// Leaves tensors that are not replaced as they are. Error: one of them shares a scale with a replaced tensor.
Status keep_others(const NewWeights& weights, Plan& plan) {
    std::map<std::string, std::string, std::less<>> kept;  // scale group -> a member that is not replaced
    for (size_t i = 0; i < plan.entries.size(); ++i) {
        PlanEntry& entry = plan.entries[i];
        if (weights.replaced(i)) continue;
        if (weights.tensors()[i].quantized())
            for (const std::string& group : {entry.scale_group, entry.search_group})
                if (!group.empty()) kept.emplace(group, entry.tensor);
        entry.spec.format = Format::none;
        entry.scale_group = entry.search_group = entry.input_group = {};
    }
    for (size_t i = 0; i < plan.entries.size(); ++i)
        for (const std::string& group : {plan.entries[i].scale_group, plan.entries[i].search_group})
            if (const auto other = kept.find(group); other != kept.end())
                return fail(ErrorKind::usage, "{} shares a scale with {}: replace both", plan.entries[i].tensor,
                            other->second);
    return Ok{};
}

}  // namespace

Result<std::shared_ptr<const Checkpoint>> requantize(std::shared_ptr<const NewWeights> weights,
                                                     const std::string& recipe, ThreadPool& pool) {
    const Checkpoint& base = weights->base();
    Json settings = {{"recipe", recipe}};
    if (recipe.empty()) {
        NIBBLE_TRY(settings, settings_of(base));
        const bool quantized = std::ranges::any_of(base.tensors(), &CheckpointTensor::quantized);
        if (!quantized) return std::shared_ptr<const Checkpoint>(std::move(weights));
        if (!settings.contains("recipe"))
            return fail(
                ErrorKind::recipe,
                "{}: has no nibble.json with the recipe of its quantized weights: name a recipe for the new ones",
                base.path().string());
    }
    const ScaleTable scales = scales_of(base);
    NIBBLE_TRY(Plan plan, plan_of(*weights, settings, scales).as(ErrorKind::recipe));
    if (plan.awq)
        return fail(ErrorKind::recipe, "{}: AWQ needs a calibration; new weights cannot be quantized with it",
                    plan.recipe);
    NIBBLE_CHECK(keep_others(*weights, plan));
    NIBBLE_TRY(const ActivationScales resolved, resolve_activation_scales(plan, &scales).as(ErrorKind::recipe));
    NIBBLE_TRY(auto made, TrialCheckpoint::create(*weights, std::move(plan), resolved, pool).as(ErrorKind::recipe));
    // Both live as long as the returned pointer.
    struct Both {
        std::shared_ptr<const NewWeights> weights;
        std::unique_ptr<TrialCheckpoint> trial;
    };
    const auto both = std::make_shared<Both>(Both{std::move(weights), std::move(made)});
    return std::shared_ptr<const Checkpoint>(both, both->trial.get());
}

}  // namespace nibble
