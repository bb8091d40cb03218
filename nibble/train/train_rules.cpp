#include "train/train_rules.h"

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

UnitRules nvfp4_rules(const TrainPrecision& p) {
    const CastRule plain{.format = CastFormat::nvfp4};
    UnitRules r{.quantized = true, .x = plain, .w = plain, .dy = plain, .w_back = plain, .dy_t = plain, .x_t = plain};
    r.x.row_scaled = p.row_scaled;
    r.w.square = r.w_back.square = p.square;
    r.w.four_over_six = p.four_over_six && !p.square;  // square blocks have only one candidate scale
    r.w_back.four_over_six = r.w.four_over_six;
    r.dy.stochastic = r.dy_t.stochastic = p.stochastic;
    r.dy_t.rotate = r.x_t.rotate = p.rotate;
    if (!p.weights_only && !p.stored_inputs) return r;
    r.engine = true;
    r.x = r.dy = r.dy_t = r.x_t = {};
    r.delayed = p.stored_inputs;
    if (p.stored_inputs) r.x = r.x_t = {.format = CastFormat::nvfp4, .stored = true};
    return r;
}

UnitRules all_alike(const CastRule& rule) {
    return {.quantized = true, .x = rule, .w = rule, .dy = rule, .w_back = rule, .dy_t = rule, .x_t = rule};
}

UnitRules block_rules(CastFormat format) {
    UnitRules r = all_alike({.format = format});
    r.w.square = r.w_back.square = true;
    return r;
}

UnitRules nibble_rules(const TrainPrecision& p, bool mlp) {
    UnitRules back = nvfp4_rules({.recipe = TrainRecipe::nvfp4, .square = false});
    UnitRules r = block_rules(CastFormat::fp8_block);
    if (mlp || !p.attention_fp8) {
        r.x = r.w = {.format = CastFormat::nvfp4, .four_over_six = p.four_over_six};
        r.x.row_scaled = p.row_scaled;
        r.rank = p.rank;
    }
    r.dy = back.dy, r.w_back = back.w_back, r.dy_t = back.dy_t, r.x_t = back.x_t;
    r.eden = p.eden;
    return r;
}

}  // namespace

UnitRules unit_rules(const TrainPrecision& p, const UnitPlace& place, bool late) {
    const bool kept = place.layer < p.first_bf16 || place.layer >= place.layers - p.last_bf16 ||
                      std::ranges::find(p.bf16_layers, place.layer) != p.bf16_layers.end();
    if (p.recipe == TrainRecipe::fp32 || p.recipe == TrainRecipe::bf16) return {};
    if (kept || (p.scope == TrainScope::mlp && !place.mlp)) return {};
    UnitRules r;
    switch (p.recipe) {
        case TrainRecipe::fp32:
        case TrainRecipe::bf16:
            return r;
        case TrainRecipe::fp8:
        case TrainRecipe::fp8_delayed:
            r = all_alike({.format = CastFormat::fp8});
            r.dy.format = r.dy_t.format = CastFormat::fp8_e5m2;
            r.delayed = p.recipe == TrainRecipe::fp8_delayed;
            break;
        case TrainRecipe::fp8_block:
            r = block_rules(p.power_of_two ? CastFormat::fp8_block2 : CastFormat::fp8_block);
            break;
        case TrainRecipe::mxfp8:
            r = all_alike({.format = CastFormat::mxfp8});
            break;
        case TrainRecipe::nvfp4:
            r = nvfp4_rules(p);
            break;
        case TrainRecipe::nibble_nvfp4:
            r = nibble_rules(p, place.mlp);
            break;
    }
    r.emulate = p.emulate;
    if (p.passes == TrainPasses::forward) {
        r.plain_back = true;
        r.eden = false;
        r.dy = r.w_back = r.dy_t = r.x_t = {};
    }
    if (p.passes == TrainPasses::backward) r.x = r.w = {}, r.rank = 0;
    if (late && p.late_forward) {
        r.rank = 0;
        r.delayed = r.engine = false;
        if (r.x_t.stored) r.x_t = {};
        r.x = r.w = {};
        if (*p.late_forward == TrainRecipe::fp8_block) {
            r.x = {.format = CastFormat::fp8_block};
            r.w = {.format = CastFormat::fp8_block, .square = true};
        }
    }
    return r;
}

bool has_directions(const TrainPrecision& p) {
    return p.recipe == TrainRecipe::nibble_nvfp4 && p.rank > 0 && p.passes != TrainPasses::backward;
}

bool late_phase(const TrainPrecision& p, int64_t step, int64_t steps) {
    if (p.late_forward && p.late_step >= 0) return step >= p.late_step;
    const auto last = std::llround(p.late_fraction * static_cast<double>(steps));
    return p.late_forward && steps > 0 && step >= steps - last;
}

Fp4Use fp4_use(const UnitRules& r) {
    if (!r.quantized) return {};
    const auto is = [](const CastRule& rule) { return static_cast<int>(rule.format == CastFormat::nvfp4); };
    Fp4Use use{.products = is(r.x) * is(r.w), .weights = is(r.w), .inputs = is(r.x)};
    const bool dy = r.eden || is(r.dy), w = r.eden || is(r.w_back), dy_t = r.eden || is(r.dy_t),
               x_t = r.eden || is(r.x_t);
    use.products += (dy && w) + (dy_t && x_t);
    use.weights += w, use.inputs += x_t, use.gradients += dy + dy_t;
    return use;
}

bool sees_neighbours(const UnitRules& r) {
    if (!r.quantized || r.delayed) return false;
    if (r.x.format == CastFormat::fp8) return true;
    return r.x.format == CastFormat::nvfp4 && !r.x.row_scaled;
}

// Routed experts of a layer read the same rows, and some have no rows in a step. They share an input_scale, as in Model
// Optimizer and in engines with grouped products.
std::string input_group(const std::string& name) {
    constexpr std::string_view experts = ".experts.";
    const size_t at = name.find(experts);
    if (at == std::string::npos) return name;
    const size_t number = at + experts.size();
    return name.substr(0, number) + name.substr(std::min(name.find('.', number), name.size()));
}

std::string rule_text(const CastRule& rule) {
    switch (rule.format) {
        case CastFormat::bf16:
            return "BF16";
        case CastFormat::fp8:
            return "E4M3 tensor";
        case CastFormat::fp8_e5m2:
            return "E5M2 tensor";
        case CastFormat::fp8_block:
            return rule.square ? "E4M3 128x128" : "E4M3 1x128";
        case CastFormat::fp8_block2:
            return rule.square ? "E4M3 128x128 2^n" : "E4M3 1x128 2^n";
        case CastFormat::mxfp8:
            return "MXFP8 1x32";
        case CastFormat::nvfp4:
            break;
    }
    std::string text = rule.square ? "NVFP4 16x16" : "NVFP4 1x16";
    if (rule.four_over_six) text += " 4/6";
    if (rule.row_scaled) text += " by row";
    if (rule.stored) text += " stored scale";
    if (rule.rotate) text += " RHT";
    if (rule.stochastic) text += " SR";
    return text;
}

}  // namespace nibble
