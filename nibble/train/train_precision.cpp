#include "train/train_precision.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

namespace nibble {
namespace {

struct PrecisionName {
    std::string_view name;
    TrainRecipe recipe;
    bool rotate = true, late = false, weights_only = false, stored_inputs = false;
};
// The first name of each recipe is its own.
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
    // NeMo RL's names. Messages do not list them.
    PrecisionName{"float32", TrainRecipe::fp32},
    PrecisionName{"bfloat16", TrainRecipe::bf16},
};
constexpr size_t nemo_names = 2;
constexpr size_t own_names = 12;  // the first names; the others are spellings of other programs

ValueKind<TrainPrecision> recipe_kind() {
    std::vector<std::string> names;
    for (const PrecisionName& n : std::span(precision_names).first(own_names)) names.emplace_back(n.name);
    return {.text = words_text(names),
            .read = [](const YamlNode& node, const std::string& name) -> Result<TrainPrecision> {
                NIBBLE_TRY(const std::string word, as_text(node, name));
                return train_precision_from_name(word).within(node.where());
            },
            .json = [](const TrainPrecision& p) -> Json { return std::string(train_recipe_name(p.recipe)); }};
}

bool quantizes(const TrainPrecision& p) { return p.recipe != TrainRecipe::fp32 && p.recipe != TrainRecipe::bf16; }
bool is_forward_alone(const TrainPrecision& p) { return p.weights_only || p.stored_inputs; }

// Returns the reason why a switch of these recipes has no effect with another recipe.
auto only_with(std::initializer_list<TrainRecipe> recipes) {
    return [recipes = std::vector<TrainRecipe>(recipes)](const TrainPrecision& p) -> std::string {
        if (std::ranges::find(recipes, p.recipe) != recipes.end()) return "";
        return fmt::format("has no effect with recipe {}", train_precision_name(p));
    };
}
std::string only_quantized(const TrainPrecision& p) {
    return quantizes(p) ? "" : fmt::format("has no effect with recipe {}", train_precision_name(p));
}

std::string refused_passes(const TrainPrecision& p) {
    if (p.passes == TrainPasses::both) return "";
    if (is_forward_alone(p))
        return fmt::format("has no effect: {} quantizes only the forward pass", train_precision_name(p));
    if (p.passes == TrainPasses::forward) return "";
    if (p.recipe == TrainRecipe::fp8_delayed)
        return fmt::format("backward: the scales of {} follow from a forward pass that is not quantized; use fp8",
                           train_precision_name(p));
    return p.late_forward ? "backward: there are no quantized forward products for late_forward to replace" : "";
}

Schema<TrainPrecision> make_precision_schema() {
    using P = TrainPrecision;
    const auto not_forward = [](const P& p) { return p.passes != TrainPasses::forward; };
    const auto not_backward = [](const P& p) { return p.passes != TrainPasses::backward; };
    const auto quantizes_gradients = [](const P& p) { return !is_forward_alone(p); };
    const std::string stay = "with weights_only or stored_inputs: gradients stay in BF16";
    const std::string forward = "with passes: forward", backward = "with passes: backward";
    const auto nvfp4 = only_with({TrainRecipe::nvfp4});
    const auto both_nvfp4 = only_with({TrainRecipe::nvfp4, TrainRecipe::nibble_nvfp4});
    const auto nibble_nvfp4 = only_with({TrainRecipe::nibble_nvfp4});
    Schema<P> s;
    s.key(
         "recipe", recipe_kind(), [](auto& p) -> auto& { return p; }, "how the products of a linear are computed")
        .says("bf16");
    s.key("scope", word_kind<TrainScope>({{"mlp", TrainScope::mlp}, {"all", TrainScope::all}}), at(&P::scope),
          "the linears that are quantized: those of MLPs and experts, or all of a block")
        .refuses(only_quantized);
    s.key("passes",
          word_kind<TrainPasses>(
              {{"both", TrainPasses::both}, {"forward", TrainPasses::forward}, {"backward", TrainPasses::backward}}),
          at(&P::passes), "the passes whose products are quantized; the other pass computes as bf16 does")
        .refuses(only_quantized)
        .refuses(refused_passes);
    s.key("first_bf16", count_kind(0), at(&P::first_bf16), "number of first layers that stay in BF16")
        .refuses(only_quantized);
    s.key("last_bf16", count_kind(0), at(&P::last_bf16), "number of last layers that stay in BF16")
        .refuses(only_quantized);
    s.key("bf16_layers", list_kind(count_kind(0), "layers"), at(&P::bf16_layers),
          "numbers of other layers that stay in BF16")
        .refuses(only_quantized);
    s.key("late_forward",
          optional_kind(word_kind<TrainRecipe>({{"bf16", TrainRecipe::bf16}, {"fp8_block", TrainRecipe::fp8_block}})),
          at(&P::late_forward), "precision of the forward products in the last part of the steps")
        .refuses(only_quantized);
    s.key("late_fraction", number_kind(0, 1), at(&P::late_fraction), "size of that last part, as a share of the steps")
        .refuses(only_quantized)
        .needs([](const P& p) { return p.late_forward.has_value(); }, "without late_forward")
        .needs([](const P& p) { return p.late_step < 0; }, "with late_step");
    s.key("late_step", count_kind(0), at(&P::late_step), "first step of that last part, instead of late_fraction")
        .says("none")
        .refuses(only_quantized)
        .needs([](const P& p) { return p.late_forward && p.late_step >= 0; }, "without late_forward");
    s.key("emulate", flag_kind(), at(&P::emulate),
          "on a GPU: multiply in BF16 with operands rounded to the recipe's formats, as a CPU always does")
        .refuses(only_quantized);
    s.key("rotate", flag_kind(), at(&P::rotate), "nvfp4: Hadamard transform of both operands of the weight gradient")
        .refuses(nvfp4)
        .needs(quantizes_gradients, stay)
        .needs(not_forward, forward);
    s.key("stochastic", flag_kind(), at(&P::stochastic), "nvfp4: stochastic rounding of gradients")
        .refuses(nvfp4)
        .needs(quantizes_gradients, stay)
        .needs(not_forward, forward);
    s.key("square", flag_kind(), at(&P::square), "nvfp4: scales of weights for blocks of 16x16 instead of 1x16")
        .refuses(nvfp4);
    s.key("four_over_six", flag_kind(), at(&P::four_over_six),
          "nvfp4, nibble_nvfp4: each block takes the better of two scales; of weights, with nibble_nvfp4 of inputs too")
        .says("false; nibble_nvfp4: true")
        .refuses(both_nvfp4)
        .needs([](const P& p) { return p.recipe != TrainRecipe::nvfp4 || !p.four_over_six || !p.square; },
               "on blocks of 16x16, which have one candidate scale; add square: false");
    s.key("row_scaled", flag_kind(), at(&P::row_scaled),
          "nvfp4, nibble_nvfp4: one FP32 scale for each row of forward inputs")
        .refuses(both_nvfp4)
        .needs(quantizes_gradients, "with weights_only or stored_inputs, which decide how inputs are rounded")
        .needs(not_backward, backward);
    s.key("weights_only", flag_kind(), at(&P::weights_only),
          "nvfp4 as W4A16: only weights are quantized, as a server of such a checkpoint computes")
        .says("false; nvfp4_w4a16: true")
        .refuses(nvfp4)
        .needs([](const P& p) { return !p.weights_only || !p.stored_inputs; }, "with stored_inputs");
    s.key("stored_inputs", flag_kind(), at(&P::stored_inputs),
          "nvfp4 as W4A4: inputs are rounded under a stored scale, as a server of such a checkpoint computes")
        .says("false; nvfp4_w4a4: true")
        .refuses(nvfp4)
        .needs([](const P& p) { return !p.weights_only || !p.stored_inputs; }, "with weights_only");
    s.key("power_of_two", flag_kind(), at(&P::power_of_two), "fp8_block: scales are rounded to powers of two")
        .refuses(only_with({TrainRecipe::fp8_block}));
    s.key("amax_history", count_kind(1), at(&P::amax_history),
          "fp8_delayed, and nvfp4 with stored_inputs: steps whose largest values decide a scale")
        .refuses(only_with({TrainRecipe::fp8_delayed, TrainRecipe::nvfp4}))
        .needs([](const P& p) { return p.recipe != TrainRecipe::nvfp4 || p.stored_inputs; }, "without stored_inputs");
    s.key("rank", count_kind(0), at(&P::rank),
          "nibble_nvfp4: rank of the BF16 term that is added to NVFP4 products; 0: no term")
        .refuses(nibble_nvfp4)
        .needs(not_backward, backward);
    s.key("eden", flag_kind(), at(&P::eden),
          "nibble_nvfp4: MS-EDEN backward pass; false: that of nvfp4 with weights in 1x16")
        .refuses(nibble_nvfp4)
        .needs(not_forward, forward);
    s.key("attention_fp8", flag_kind(), at(&P::attention_fp8),
          "nibble_nvfp4: linears outside of MLPs as fp8_block; false: as those of MLPs")
        .refuses(nibble_nvfp4)
        .needs(not_backward, backward);
    return s;
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
    for (size_t i = 0; i < precision_names.size(); ++i) {
        const PrecisionName& n = precision_names[i];
        if (n.name == name) {
            const bool nemo = i + nemo_names >= precision_names.size();
            TrainPrecision p{.recipe = n.recipe,
                             .name = nemo ? std::string_view() : n.name,
                             .rotate = n.rotate,
                             .weights_only = n.weights_only,
                             .stored_inputs = n.stored_inputs};
            p.four_over_six = n.recipe == TrainRecipe::nibble_nvfp4;
            if (n.late) p.late_forward = TrainRecipe::fp8_block;
            return p;
        }
        if (i < own_names) choices += (choices.empty() ? "" : ", ") + std::string(n.name);
    }
    return fail("unknown precision '{}'; choices: {}", name, choices);
}

const Schema<TrainPrecision>& train_precision_schema() {
    static const Schema<TrainPrecision> schema = make_precision_schema();
    return schema;
}

Json train_precision_json(const TrainPrecision& p) { return train_precision_schema().identity(p); }

Status check_device_precision(const TrainPrecision& p) {
    if (p.recipe == TrainRecipe::fp32) return fail("--device cuda does not train in fp32; use bf16, or --device cpu");
    // The backward pass uses the values of the forward product, which a late forward product does not have.
    if ((p.weights_only || p.stored_inputs) && p.late_forward)
        return fail("--device cuda: {} with late_forward is not supported; use --device cpu",
                    p.weights_only ? "weights_only" : "stored_inputs");
    return Ok{};
}

}  // namespace nibble
