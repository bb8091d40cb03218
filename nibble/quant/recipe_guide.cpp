#include "quant/recipe_guide.h"

#include <algorithm>

namespace nibble {
namespace {

struct Purpose {
    std::string_view name, purpose, covers;
};

constexpr std::string_view linears = "all linears", mlps = "MLPs and experts",
                           hybrid = "all linears but attention and latent projections",
                           hybrid_few = "all linears but attention, latent and Mamba projections";

constexpr Purpose purposes[] = {
    {"nvfp4", "4-bit weights and inputs, the usual choice", linears},
    {"nvfp4_four_over_six", "a block's largest weight becomes 4 or 6; less loss, same size", linears},
    {"nvfp4_w4a4_weight_mse_fp8_sweep", "each block tries 126 scales; less loss, no text needed", linears},
    {"nvfp4_awq_lite", "AWQ; inputs are scaled, the scales folded into weights", linears},
    {"nvfp4_gptq", "GPTQ; rounding reduces the error of the layer's output", linears},
    {"nvfp4_w4a4_weight_local_hessian", "block scales reduce the error of the layer's output", linears},
    {"nvfp4_nibble_best", "nibble's own solver; smallest loss, slowest", linears},
    {"w4a16_nvfp4", "4-bit weights, unquantized inputs", linears},
    {"w4a16_nvfp4_awq_lite", "AWQ; inputs are scaled, the scales folded into weights", linears},
    {"w4a16_nvfp4_gptq", "GPTQ; rounding reduces the error of the layer's output", linears},
    {"w4a16_nvfp4_local_hessian", "block scales reduce the error of the layer's output", linears},
    {"w4a16_nvfp4_nibble_best", "nibble's own solver; smallest loss, slowest", linears},
    {"nvfp4_mlp_only", "attention stays BF16", mlps},
    {"nvfp4_experts_only", "only the experts, which are most of the weights", "routed experts"},
    {"nvfp4_omlp_only", "attention's inputs stay BF16", "MLPs, experts and o_proj"},
    {"nvfp4_mlp_weight_only", "NVFP4 in blocks of 32", mlps},
    {"fp8", "8-bit weights and inputs, almost no loss", linears},
    {"fp8_per_channel_per_token", "one scale per row and per token; no calibration needed", linears},
    {"fp8_2d_blockwise_weight_only", "one scale per 128 x 128 tile of weights", linears},
    {"mxfp8", "OCP's 8-bit format; scales are powers of two", linears},
    {"w4a16_int4", "4-bit integers in groups of 128, compressed-tensors only", linears},
    {"w4a16_int4_awq_lite", "AWQ; inputs are scaled, the scales folded into weights", linears},
    {"w4a16_int4_gptq", "GPTQ; rounding reduces the error of the layer's output", linears},
    {"mxfp4", "OCP's 4-bit format; scales are powers of two", linears},
    {"mxfp4_mlp_weight_only", "OCP's 4-bit format, weights only", mlps},
    {"mamba_moe_nvfp4_aggressive", "4 bits for Nemotron-H and similar hybrids", hybrid},
    {"mamba_moe_nvfp4_conservative", "4 bits for Nemotron-H and similar hybrids", hybrid_few},
    {"mamba_moe_fp8_aggressive", "8 bits for Nemotron-H and similar hybrids", hybrid},
    {"mamba_moe_fp8_conservative", "8 bits for Nemotron-H and similar hybrids", hybrid_few},
};

// Returns the machines that multiply in these formats. Tensor cores: Hopper has FP8; Blackwell has FP8, MXFP8, MXFP4
// and NVFP4. Engines run 4-bit weights with BF16 inputs through Marlin kernels from Ampere on.
std::string machines(Format weights, ActivationFormat inputs) {
    switch (weights) {
        case Format::nvfp4:
            return inputs == ActivationFormat::nvfp4 ? "Blackwell; Hopper as w4a16"
                                                     : "Ampere, Hopper, Blackwell; CPU; llama.cpp";
        case Format::nvfp4_bs32:
            return "nibble only";
        case Format::fp8:
        case Format::fp8_row:
        case Format::fp8_block128:
            return "Ada, Hopper, Blackwell; CPU";
        case Format::mxfp8:
            return "Blackwell; CPU";
        case Format::mxfp4:
            return inputs == ActivationFormat::none ? "Hopper, Blackwell; CPU; llama.cpp" : "Blackwell; CPU";
        case Format::int4:
            return "Ampere, Hopper, Blackwell; CPU";
        default:
            return "everything";
    }
}

// Returns the recipe's first rule that enables quantizers of this kind; it is taken as representative.
const Rule* first_rule(const Recipe& recipe, std::string_view kind) {
    const auto found = std::ranges::find_if(recipe.rules, [&](const Rule& rule) {
        return rule.enable && !rule.cfg.empty() && rule.pattern.find(kind) != std::string::npos;
    });
    return found == recipe.rules.end() ? nullptr : &*found;
}

Result<RecipeGuide> guide_of(const Purpose& preset) {
    NIBBLE_TRY(const Recipe recipe, load_recipe(preset.name));
    RecipeGuide guide{
        .name = std::string(preset.name), .purpose = std::string(preset.purpose), .covers = std::string(preset.covers)};
    const Rule* weights = first_rule(recipe, "weight_quantizer");
    const Rule* inputs = first_rule(recipe, "input_quantizer");
    if (!weights) return fail("preset '{}' quantizes no weights", preset.name);
    NIBBLE_TRY(const WeightSpec spec, weight_spec(weights->cfg));
    NIBBLE_TRY(const SearchPlan search, plan_search(recipe.algorithms));
    NIBBLE_TRY(const WeightSolver solver, solver_for(search, spec));
    guide.weights = spec.format;
    if (inputs) {
        NIBBLE_TRY(guide.inputs, activation_format(inputs->cfg));
    }
    constexpr int64_t large = 4096;  // size of a matrix whose single scale is negligible
    guide.bits = bits_per_element(guide.weights, large, large);
    guide.learns = solver || search.awq || !search.needs_activations.empty();
    guide.needs_text = guide.learns || (inputs && stores_input_scale(guide.inputs));
    guide.runs_on = machines(guide.weights, guide.inputs);
    return guide;
}

}  // namespace

Result<std::vector<RecipeGuide>> recipe_guide() {
    std::vector<RecipeGuide> guides;
    for (const Purpose& preset : purposes) {
        NIBBLE_TRY(auto guide, guide_of(preset));
        guides.push_back(std::move(guide));
    }
    return guides;
}

}  // namespace nibble
