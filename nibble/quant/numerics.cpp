#include "quant/numerics.h"

#include <fmt/ranges.h>

namespace nibble {
namespace {

std::string describe(const QuantizerConfig& c) {
    std::string text = to_string(c.num_bits);
    for (const auto& [axis, size] : c.block_sizes)
        text += fmt::format(" block {}:{}", axis, size ? std::to_string(*size) : "all");
    if (c.axis) text += fmt::format(" axis {}", fmt::join(*c.axis, ","));
    if (c.scale_bits) text += " scales " + to_string(*c.scale_bits);
    if (!c.block_sizes.empty()) text += c.dynamic_blocks ? " dynamic" : " static";
    if (c.dynamic) text += " type dynamic";
    return text;
}

// Returns the only quantizer. Error: several in sequence, or attributes that nibble does not support.
Result<const QuantizerConfig*> only(const std::vector<QuantizerConfig>& cfg) {
    if (cfg.size() != 1) return fail("quantizers in sequence are not supported");
    if (!cfg[0].unsupported.empty()) return fail("not supported: {}", fmt::join(cfg[0].unsupported, ", "));
    return &cfg[0];
}

bool blocks_are(const QuantizerConfig& c, int size) {
    return c.block_sizes.size() == 1 && c.block_sizes.begin()->first == -1 && c.block_sizes.begin()->second == size;
}

bool scales_are(const QuantizerConfig& c, int exponent, int mantissa) {
    return c.scale_bits && c.scale_bits->is_float(exponent, mantissa);
}

bool is_mx(const QuantizerConfig& c) {
    return blocks_are(c, 32) && scales_are(c, 8, 0) && c.dynamic_blocks && !c.dynamic;
}

bool is_nvfp4(const QuantizerConfig& c, int block) {
    return c.num_bits.is_float(2, 1) && blocks_are(c, block) && scales_are(c, 4, 3) && !c.dynamic;
}

bool is_fp8_per_tensor(const QuantizerConfig& c) {
    return c.num_bits.is_float(4, 3) && c.block_sizes.empty() && !c.axis && !c.dynamic;
}

}  // namespace

Result<WeightSpec> weight_spec(const std::vector<QuantizerConfig>& cfg) {
    NIBBLE_TRY(const QuantizerConfig* only_one, only(cfg));
    const QuantizerConfig& c = *only_one;
    if (c.constant_amax || c.use_constant_amax) return fail("a constant amax for weights is not supported");
    const bool e4m3 = c.num_bits.is_float(4, 3), e2m1 = c.num_bits.is_float(2, 1);
    WeightSpec spec;
    if (is_nvfp4(c, 16)) {
        spec.format = Format::nvfp4;
        spec.static_scales = !c.dynamic_blocks;
        if (c.four_over_six && c.dynamic_blocks) return fail("four_over_six needs static blocks");
        if (c.four_over_six) spec.normalization = 256.0f;
        return spec;
    }
    if (c.four_over_six) return fail("four_over_six needs NVFP4 blocks of 16");
    if (is_nvfp4(c, 32) && c.dynamic_blocks)
        spec.format = Format::nvfp4_bs32;
    else if (e2m1 && is_mx(c))
        spec.format = Format::mxfp4;
    else if (e4m3 && is_mx(c))
        spec.format = Format::mxfp8;
    else if (c.num_bits.integer == 4 && blocks_are(c, 128) && !c.scale_bits && !c.dynamic_blocks && !c.dynamic)
        spec.format = Format::int4;
    else if (is_fp8_per_tensor(c))
        spec.format = Format::fp8;
    else if (e4m3 && c.block_sizes.empty() && c.axis == std::vector{0} && !c.dynamic)
        spec.format = Format::fp8_row;
    else if (e4m3 && c.block_sizes == std::map<int, std::optional<int>>{{-2, 128}, {-1, 128}} && !c.scale_bits &&
             !c.dynamic_blocks && !c.dynamic)
        spec.format = Format::fp8_block128;
    else
        return fail("weights in {} are not supported", describe(c));
    return spec;
}

Result<ActivationFormat> activation_format(const std::vector<QuantizerConfig>& cfg) {
    NIBBLE_TRY(const QuantizerConfig* only_one, only(cfg));
    const QuantizerConfig& c = *only_one;
    if (c.use_constant_amax) return fail("use_constant_amax for inputs is not supported (constant_amax is)");
    if (is_nvfp4(c, 16) && c.dynamic_blocks && !c.four_over_six) return ActivationFormat::nvfp4;
    if (is_fp8_per_tensor(c)) return ActivationFormat::fp8;
    if (is_mx(c) && c.num_bits.is_float(4, 3)) return ActivationFormat::mxfp8;
    if (is_mx(c) && c.num_bits.is_float(2, 1)) return ActivationFormat::mxfp4;
    const bool per_token = c.block_sizes == std::map<int, std::optional<int>>{{-1, std::nullopt}};
    if (c.num_bits.is_float(4, 3) && c.dynamic && per_token && !c.scale_bits && !c.constant_amax)
        return ActivationFormat::fp8_token;
    return fail("inputs in {} are not supported", describe(c));
}

Result<KvFormat> kv_format(const std::vector<QuantizerConfig>& cfg) {
    NIBBLE_TRY(const QuantizerConfig* only_one, only(cfg));
    const QuantizerConfig& c = *only_one;
    if (c.constant_amax) return fail("constant_amax for the KV cache is not supported (use_constant_amax is)");
    if (is_fp8_per_tensor(c)) return c.use_constant_amax ? KvFormat::fp8_cast : KvFormat::fp8;
    if (is_nvfp4(c, 16) && c.dynamic_blocks && !c.four_over_six)
        return c.use_constant_amax ? KvFormat::nvfp4_cast : KvFormat::nvfp4;
    return fail("a KV cache in {} is not supported", describe(c));
}

bool runs_together(Format weights, ActivationFormat inputs) {
    if (inputs == ActivationFormat::none) return true;
    switch (weights) {
        case Format::nvfp4:
            return inputs == ActivationFormat::nvfp4;
        case Format::fp8:
            return inputs == ActivationFormat::fp8;
        case Format::fp8_row:
            return inputs == ActivationFormat::fp8_token;
        case Format::mxfp8:
            return inputs == ActivationFormat::mxfp8;
        case Format::mxfp4:
            return inputs == ActivationFormat::mxfp4;
        default:
            return false;
    }
}

Result<SearchPlan> plan_search(const std::vector<Algorithm>& algorithms) {
    SearchPlan plan;
    for (const Algorithm& a : algorithms) {
        using enum Algorithm::Method;
        if (a.method == nvfp4_act_headroom) {
            plan.needs_activations.push_back(fmt::format("algorithm {} ({})", method_name(a.method), a.where));
            continue;
        }
        if (a.method == awq_lite) plan.awq = AwqOptions{a.alpha_step};
        if (a.method != none && a.method != max && a.method != mse && a.method != awq_lite && !a.solver)
            return fail("{}: algorithm '{}' is not supported", a.where, method_name(a.method));
        if (!a.unsupported.empty())
            return fail("{}: algorithm '{}' with {} is not supported", a.where, method_name(a.method),
                        fmt::join(a.unsupported, ", "));
        // Each method starts from the maxima, so the last method decides the codes; awq_lite's scales are applied
        // before.
        if (a.method == none) continue;
        const bool searches = a.method == mse || a.method == local_hessian;
        plan.solver = a.solver;
        plan.sweep = searches && a.fp8_scale_sweep;
        plan.multipliers = {};
        if (searches && !a.fp8_scale_sweep) plan.multipliers = {Search::Kind::multipliers, a.start, a.stop, a.step};
    }
    return plan;
}

Status apply_search(const SearchPlan& plan, WeightSpec& spec) {
    const bool four_over_six = spec.normalization != 448.0f;
    if (plan.sweep && spec.static_scales) {
        if (four_over_six)
            return fail(
                "four_over_six does not go with fp8_scale_sweep; give start_multiplier 1.0, stop 1.5, step 0.5");
        spec.search = {Search::Kind::sweep};
    }
    // Model Optimizer searches every weight with a calibrated maximum, including FP8 layers of a four-over-six recipe.
    // MX formats have no such maximum, and the scales of INT4 are those of compressed-tensors.
    const bool fixed = spec.format == Format::mxfp4 || spec.format == Format::mxfp8 || spec.format == Format::int4;
    if (plan.multipliers.kind == Search::Kind::multipliers && !fixed) spec.search = plan.multipliers;
    return Ok{};
}

Result<WeightSolver> solver_for(const SearchPlan& plan, const WeightSpec& spec) {
    switch (plan.solver.kind) {
        case WeightSolver::Kind::none:
            return WeightSolver{};
        case WeightSolver::Kind::local_hessian:
            return spec.static_scales ? plan.solver : WeightSolver{};
        case WeightSolver::Kind::gptq:
            if (spec.format != Format::nvfp4 && spec.format != Format::int4)
                return fail("gptq of weights in {} is not supported", format_name(spec.format));
            return plan.solver;
        case WeightSolver::Kind::nibble_best:
            return spec.format == Format::nvfp4 ? plan.solver : WeightSolver{};
    }
    return WeightSolver{};
}

}  // namespace nibble
