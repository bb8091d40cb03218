#include "train/train_precision.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <vector>

namespace nibble {
namespace {

struct PrecisionName {
    std::string_view name;
    TrainRecipe recipe;
    bool rotate = true, late = false, weights_only = false, stored_inputs = false;
};
// The first name of a recipe is its own.
constexpr std::array precision_names{
    PrecisionName{"fp32", TrainRecipe::fp32},
    PrecisionName{"bf16", TrainRecipe::bf16},
    PrecisionName{"fp8", TrainRecipe::fp8},
    PrecisionName{"fp8_delayed", TrainRecipe::fp8_delayed},
    PrecisionName{"fp8_block", TrainRecipe::fp8_block},
    PrecisionName{"mxfp8", TrainRecipe::mxfp8},
    PrecisionName{"nvfp4", TrainRecipe::nvfp4},
    PrecisionName{"nvfp4_no_rht", TrainRecipe::nvfp4, false},
    PrecisionName{"nvfp4_w4a16", TrainRecipe::nvfp4, true, false, true},
    PrecisionName{"nvfp4_w4a4", TrainRecipe::nvfp4, true, false, false, true},
    PrecisionName{"nibble_nvfp4", TrainRecipe::nibble_nvfp4},
    PrecisionName{"nibble_nvfp4_late", TrainRecipe::nibble_nvfp4, true, true},
    PrecisionName{"te_fp8_currentscaling", TrainRecipe::fp8},
    PrecisionName{"te_fp8_delayedscaling", TrainRecipe::fp8_delayed},
    PrecisionName{"te_mxfp8", TrainRecipe::mxfp8},
    PrecisionName{"te_nvfp4", TrainRecipe::nvfp4},
    PrecisionName{"te_nvfp4_no_rht", TrainRecipe::nvfp4, false},
};

// By TrainPasses.
constexpr std::array<std::string_view, 3> pass_names{"both", "forward", "backward"};

// Which keys a recipe has beside `recipe`.
std::vector<std::string_view> switches_of(TrainRecipe recipe) {
    std::vector<std::string_view> keys;
    if (recipe == TrainRecipe::fp32 || recipe == TrainRecipe::bf16) return keys;
    keys = {"scope",        "passes",        "first_bf16", "last_bf16", "bf16_layers",
            "late_forward", "late_fraction", "late_step",  "emulate"};
    const auto add = [&](std::initializer_list<std::string_view> more) { keys.insert(keys.end(), more); };
    if (recipe == TrainRecipe::nvfp4)
        add({"rotate", "stochastic", "square", "four_over_six", "row_scaled", "weights_only", "stored_inputs",
             "amax_history"});
    if (recipe == TrainRecipe::fp8_block) add({"power_of_two"});
    if (recipe == TrainRecipe::fp8_delayed) add({"amax_history"});
    if (recipe == TrainRecipe::nibble_nvfp4) add({"rank", "eden", "attention_fp8", "four_over_six", "row_scaled"});
    return keys;
}

Status read_switch(const YamlNode& node, const std::string& key, const std::string& what, TrainPrecision& p) {
    const auto flag = [&](bool& to) -> Status {
        NIBBLE_TRY(to, as_bool(node, what));
        return Ok{};
    };
    const auto count = [&](int64_t least, int64_t& to) -> Status {
        NIBBLE_TRY(const int value, as_int(node, what));
        if (value < least) return fail("{}: {} must be at least {}, not {}", node.where(), what, least, value);
        to = value;
        return Ok{};
    };
    if (key == "scope") {
        NIBBLE_TRY(const std::string word, as_text(node, what));
        if (word != "mlp" && word != "all")
            return fail("{}: {} must be mlp or all, not '{}'", node.where(), what, word);
        p.scope = word == "mlp" ? TrainScope::mlp : TrainScope::all;
    }
    if (key == "passes") {
        NIBBLE_TRY(const std::string word, as_text(node, what));
        const auto known = std::ranges::find(pass_names, word);
        if (known == pass_names.end())
            return fail("{}: {} must be both, forward or backward, not '{}'", node.where(), what, word);
        p.passes = static_cast<TrainPasses>(known - pass_names.begin());
    }
    if (key == "first_bf16") return count(0, p.first_bf16);
    if (key == "last_bf16") return count(0, p.last_bf16);
    if (key == "late_step") return count(0, p.late_step);
    if (key == "bf16_layers") {
        if (!node.is_list()) return fail("{}: {} must be a list of layers", node.where(), what);
        for (const YamlNode& item : node.items) {
            NIBBLE_TRY(const int layer, as_int(item, what));
            if (layer < 0) return fail("{}: {}: no layer has the number {}", item.where(), what, layer);
            p.bf16_layers.push_back(layer);
        }
    }
    if (key == "rotate") return flag(p.rotate);
    if (key == "stochastic") return flag(p.stochastic);
    if (key == "square") return flag(p.square);
    if (key == "four_over_six") return flag(p.four_over_six);
    if (key == "row_scaled") return flag(p.row_scaled);
    if (key == "weights_only") return flag(p.weights_only);
    if (key == "stored_inputs") return flag(p.stored_inputs);
    if (key == "power_of_two") return flag(p.power_of_two);
    if (key == "amax_history") return count(1, p.amax_history);
    if (key == "rank") return count(0, p.rank);
    if (key == "emulate") return flag(p.emulate);
    if (key == "eden") return flag(p.eden);
    if (key == "attention_fp8") return flag(p.attention_fp8);
    if (key == "late_fraction") {
        NIBBLE_TRY(p.late_fraction, as_number(node, what));
        if (!(p.late_fraction >= 0 && p.late_fraction <= 1))
            return fail("{}: {} must be from 0 to 1", node.where(), what);
    }
    if (key == "late_forward") {
        NIBBLE_TRY(const std::string word, as_text(node, what));
        if (word != "bf16" && word != "fp8_block")
            return fail("{}: {} must be bf16 or fp8_block, not '{}'", node.where(), what, word);
        p.late_forward = word == "bf16" ? TrainRecipe::bf16 : TrainRecipe::fp8_block;
    }
    return Ok{};
}

// What a recipe with one quantized pass has not.
Status check_passes(const YamlNode& node, const std::string& name, const std::string& what, const TrainPrecision& p) {
    const bool forward = p.passes == TrainPasses::forward;
    const std::string where = fmt::format("{}: {}.passes", node.find("passes")->where(), what);
    if (p.weights_only || p.stored_inputs)
        return fail("{}: '{}' quantizes the forward pass alone already", where, name);
    if (!forward && p.recipe == TrainRecipe::fp8_delayed)
        return fail("{}: the scales of '{}' are seen in the forward pass, which backward leaves in BF16; use fp8",
                    where, name);
    if (!forward && p.late_forward)
        return fail("{}: backward has no forward products that late_forward changes", where);
    const std::array<std::string_view, 3> forward_only{"row_scaled", "rank", "attention_fp8"};
    const std::array<std::string_view, 3> backward_only{"rotate", "stochastic", "eden"};
    for (const std::string_view key : forward ? backward_only : forward_only)
        if (const YamlNode* at = node.find(key))
            return fail("{}: {}.{}: has no effect with passes: {}", at->where(), what, key,
                        forward ? "forward" : "backward");
    return Ok{};
}

}  // namespace

std::string_view train_recipe_name(TrainRecipe recipe) {
    return std::ranges::find(precision_names, recipe, &PrecisionName::recipe)->name;
}

std::string_view train_precision_name(const TrainPrecision& precision) {
    return precision.name.empty() ? train_recipe_name(precision.recipe) : precision.name;
}

Result<TrainPrecision> train_precision_from_name(std::string_view name) {
    std::string choices;
    for (const PrecisionName& n : precision_names) {
        if (n.name == name) {
            TrainPrecision p{.recipe = n.recipe,
                             .name = n.name,
                             .rotate = n.rotate,
                             .weights_only = n.weights_only,
                             .stored_inputs = n.stored_inputs};
            p.four_over_six = n.recipe == TrainRecipe::nibble_nvfp4;
            if (n.late) p.late_forward = TrainRecipe::fp8_block;
            return p;
        }
        if (!n.name.starts_with("te_")) choices += (choices.empty() ? "" : ", ") + std::string(n.name);
    }
    return fail("unknown precision '{}'; choices: {}", name, choices);
}

Result<TrainPrecision> read_train_precision(const YamlNode& node, const std::string& what) {
    const YamlNode* recipe = node.is_map() ? node.find("recipe") : &node;
    if (!recipe) return fail("{}: {} has no 'recipe'", node.where(), what);
    NIBBLE_TRY(const std::string name, as_text(*recipe, what));
    auto known = train_precision_from_name(name);
    if (!known.ok()) return std::move(known).error().within(recipe->where());
    TrainPrecision p = *known;
    const std::vector<std::string_view> keys = switches_of(p.recipe);
    for (const YamlEntry& entry : node.entries) {
        if (entry.key == "recipe") continue;
        if (std::ranges::find(keys, entry.key) == keys.end())
            return fail("{}: {} '{}' has no switch '{}'", entry.value.where(), what, name, entry.key);
        NIBBLE_CHECK(read_switch(entry.value, entry.key, what + "." + entry.key, p));
    }
    if (p.stored_inputs && (p.weights_only || p.row_scaled))
        return fail("{}: {}: stored_inputs beside {}: inputs are rounded in one way", node.where(), what,
                    p.weights_only ? "weights_only" : "row_scaled");
    const auto without_effect = [&](std::string_view key, std::string_view why) {
        return fail("{}: {}.{}: has no effect {}", node.find(key)->where(), what, key, why);
    };
    if (p.recipe == TrainRecipe::nvfp4) {
        if (p.four_over_six && p.square)
            return without_effect("four_over_six",
                                  "on tiles of 16 x 16, whose scale has one candidate; add square: false");
        for (const std::string_view key : {"rotate", "stochastic", "row_scaled"})
            if ((p.weights_only || p.stored_inputs) && node.find(key))
                return without_effect(key, "beside weights_only or stored_inputs, whose gradients stay BF16");
    }
    for (const std::string_view key : {"late_fraction", "late_step"})
        if (!p.late_forward && node.find(key)) return without_effect(key, "without late_forward");
    if (node.find("late_fraction") && node.find("late_step"))
        return without_effect("late_fraction", "beside late_step");
    if (p.passes != TrainPasses::both) NIBBLE_CHECK(check_passes(node, name, what, p));
    if (p.recipe == TrainRecipe::nvfp4 && !p.stored_inputs && node.find("amax_history"))
        return fail("{}: {}.amax_history: without stored_inputs no scale follows from earlier steps", node.where(),
                    what);
    return p;
}

Json train_precision_json(const TrainPrecision& p) {
    const std::vector<std::string_view> keys = switches_of(p.recipe);
    const Json all{{"scope", p.scope == TrainScope::mlp ? "mlp" : "all"},
                   {"passes", pass_names[static_cast<size_t>(p.passes)]},
                   {"first_bf16", p.first_bf16},
                   {"last_bf16", p.last_bf16},
                   {"bf16_layers", p.bf16_layers},
                   {"rotate", p.rotate},
                   {"stochastic", p.stochastic},
                   {"square", p.square},
                   {"four_over_six", p.four_over_six},
                   {"row_scaled", p.row_scaled},
                   {"weights_only", p.weights_only},
                   {"stored_inputs", p.stored_inputs},
                   {"power_of_two", p.power_of_two},
                   {"amax_history", p.amax_history},
                   {"rank", p.rank},
                   {"emulate", p.emulate},
                   {"eden", p.eden},
                   {"attention_fp8", p.attention_fp8},
                   {"late_forward", p.late_forward ? Json(train_recipe_name(*p.late_forward)) : Json()},
                   {"late_fraction", p.late_fraction},
                   {"late_step", p.late_step}};
    Json json{{"recipe", train_recipe_name(p.recipe)}};
    for (const std::string_view key : keys) json[std::string(key)] = all.at(std::string(key));
    // Runs from before there was one.
    if (p.bf16_layers.empty()) json.erase("bf16_layers");
    if (p.passes == TrainPasses::both) json.erase("passes");
    if (p.late_step < 0) json.erase("late_step");
    if (!p.weights_only) json.erase("weights_only");
    if (!p.stored_inputs) json.erase("stored_inputs");
    if (p.recipe == TrainRecipe::nvfp4 && !p.stored_inputs) json.erase("amax_history");
    if (!p.emulate) json.erase("emulate");
    return json;
}

Status check_device_precision(const TrainPrecision& p) {
    if (p.recipe == TrainRecipe::fp32) return fail("--device cuda has no products of fp32; use bf16, or --device cpu");
    // The way back takes the numbers of the forward product, which a late one would not have.
    if ((p.weights_only || p.stored_inputs) && p.late_forward)
        return fail("--device cuda: {} with late_forward is not built; use --device cpu",
                    p.weights_only ? "weights_only" : "stored_inputs");
    return Ok{};
}

}  // namespace nibble
