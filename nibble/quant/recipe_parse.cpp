#include "quant/recipe_parse.h"

#include "quant/recipe_imports.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace nibble {
namespace {

// Parses 8, "e4m3", or [4, 3], which Model Optimizer prints.
Result<NumBits> parse_num_bits(const YamlNode& node, std::string_view what) {
    if (node.is_list()) {
        if (node.items.size() != 2)
            return fail("{}: {} as a list is [exponent bits, mantissa bits]", node.where(), what);
        NIBBLE_TRY(const int exponent, as_int(node.items[0], what));
        NIBBLE_TRY(const int mantissa, as_int(node.items[1], what));
        if (exponent < 1 || exponent > 8 || mantissa < 0 || mantissa > 10)
            return fail("{}: {} e{}m{} is not a known number format", node.where(), what, exponent, mantissa);
        return NumBits{0, exponent, mantissa};
    }
    if (auto bits = as_int(node, what); bits.ok()) {
        if (*bits < 1 || *bits > 32) return fail("{}: {} must be between 1 and 32, not {}", node.where(), what, *bits);
        return NumBits{*bits, 0, 0};
    }
    const std::string& t = node.text;
    const auto digit = [](char c) { return c >= '0' && c <= '9'; };
    if (node.kind == YamlNode::Kind::scalar && t.size() == 4 && t[0] == 'e' && digit(t[1]) && t[2] == 'm' &&
        digit(t[3]) && t[1] > '0')
        return NumBits{0, t[1] - '0', t[3] - '0'};
    NIBBLE_TRY(const std::string text, as_text(node, what));
    return fail("{}: {} must be a number of bits or eXmY, not '{}'", node.where(), what, text);
}

Result<bool> parse_dynamic(const YamlNode& node, std::string_view what) {
    NIBBLE_TRY(const std::string text, as_text(node, what));
    if (text == "dynamic") return true;
    if (text == "static") return false;
    return fail("{}: {} must be static or dynamic, not '{}'", node.where(), what, text);
}

Result<std::vector<int>> parse_axis(const YamlNode& node) {
    std::vector<int> axis;
    const std::vector<YamlNode> one = {node};
    for (const YamlNode& item : node.is_list() ? node.items : one) {
        NIBBLE_TRY(const int a, as_int(item, "axis"));
        axis.push_back(a);
    }
    return axis;
}

Status parse_block_sizes(const YamlNode& node, QuantizerConfig& config) {
    if (!node.is_map()) return fail("{}: block_sizes must be a mapping", node.where());
    for (const auto& [key, value] : node.entries) {
        int axis = 0;
        const auto [stop, error] = std::from_chars(key.data(), key.data() + key.size(), axis);
        if (error == std::errc() && stop == key.data() + key.size()) {
            if (value.is_null()) {
                config.block_sizes[axis] = std::nullopt;
                continue;
            }
            NIBBLE_TRY(const int size, as_int(value, fmt::format("block size of axis {}", axis)));
            if (size < 1) return fail("{}: a block size must be positive, not {}", value.where(), size);
            config.block_sizes[axis] = size;
        } else if (key == "type") {
            NIBBLE_TRY(config.dynamic_blocks, parse_dynamic(value, "block_sizes.type"));
        } else if (key == "scale_bits") {
            NIBBLE_TRY(config.scale_bits, parse_num_bits(value, "scale_bits"));
        } else if (key == "scale_block_sizes") {
            if (!value.is_null()) config.unsupported.push_back("block_sizes.scale_block_sizes");
        } else if (key == "four_over_six") {
            // Model Optimizer prints 1 and 0 in its own configs.
            auto flag = as_bool(value, "four_over_six");
            if (!flag.ok()) {
                auto number = as_int(value, "four_over_six");
                if (!number.ok() || (*number != 0 && *number != 1)) return std::move(flag).error();
                config.four_over_six = *number == 1;
            } else {
                config.four_over_six = *flag;
            }
        } else {
            return fail(
                "{}: block_sizes has no key '{}'; it has: axis numbers, type, scale_bits, scale_block_sizes, "
                "four_over_six",
                value.where(), key);
        }
    }
    return Ok{};
}

Result<Rule> parse_rule(const YamlNode& node, std::string_view root) {
    NIBBLE_CHECK(check_keys(node, "a rule", {"quantizer_name", "parent_class", "cfg", "enable"}));
    Rule rule;
    rule.where = node.where();
    rule.imported = node.file && *node.file != root;
    rule.builtin = node.file && is_builtin(*node.file);
    const YamlNode* name = node.find("quantizer_name");
    if (!name) return fail("{}: a rule needs 'quantizer_name'", node.where());
    NIBBLE_TRY(rule.pattern, as_text(*name, "quantizer_name"));
    if (const YamlNode* parent = node.find("parent_class"); parent && !parent->is_null()) {
        NIBBLE_TRY(rule.parent_class, as_text(*parent, "parent_class"));
    }
    const YamlNode* enable = node.find("enable");
    if (enable) {
        NIBBLE_TRY(rule.enable, as_bool(*enable, "enable"));
    }
    const YamlNode* cfg = node.find("cfg");
    if (!cfg || cfg->is_null()) {
        if (!enable) return fail("{}: rule '{}' needs 'cfg' or 'enable'", node.where(), rule.pattern);
        return rule;
    }
    const std::vector<YamlNode> one = {*cfg};
    for (const YamlNode& item : cfg->is_list() ? cfg->items : one) {
        const bool empty = item.is_null() || (item.is_map() && item.entries.empty());
        const bool only_enable = item.is_map() && item.entries.size() == 1 && item.entries[0].key == "enable";
        if ((empty || only_enable) && rule.enable)
            return fail("{}: rule '{}' is enabled, but its cfg is empty", item.where(), rule.pattern);
        NIBBLE_TRY(QuantizerConfig config, parse_quantizer_config(item));
        rule.cfg.push_back(std::move(config));
    }
    if (rule.cfg.empty()) return fail("{}: rule '{}' has an empty list as cfg", cfg->where(), rule.pattern);
    return rule;
}

struct Method {
    std::string_view name;
    Algorithm::Method method;
};
using enum Algorithm::Method;
constexpr std::array methods = {
    Method{"none", none},         Method{"max", max},
    Method{"mse", mse},           Method{"local_hessian", local_hessian},
    Method{"gptq", gptq},         Method{"nibble_best", nibble_best},
    Method{"awq_lite", awq_lite}, Method{"awq_clip", awq_clip},
    Method{"awq_full", awq_full}, Method{"smoothquant", smoothquant},
    Method{"svdquant", svdquant}, Method{"nvfp4_act_headroom", nvfp4_act_headroom},
    Method{"lsq", lsq},
};

Result<Algorithm::Method> parse_method(const YamlNode& node) {
    NIBBLE_TRY(const std::string name, as_text(node, "algorithm"));
    for (const Method& m : methods)
        if (m.name == name && m.method != none) return m.method;
    std::string known;
    for (const Method& m : methods)
        if (m.method != none) known += (known.empty() ? "" : ", ") + std::string(m.name);
    return fail("{}: algorithm '{}' is not known; known: {}", node.where(), name, known);
}

Status parse_gptq_option(const YamlNode& node, std::string_view key, Algorithm& a) {
    GptqOptions& options = a.solver.gptq;
    if (key == "perc_damp" || key == "percdamp") {
        NIBBLE_TRY(const double damping, as_number(node, key));
        if (!(damping >= 0 && damping <= 100)) return fail("{}: {} must be between 0 and 100", node.where(), key);
        options.damping = static_cast<float>(damping);
        return Ok{};
    }
    if (key == "block_size") {
        NIBBLE_TRY(options.group, as_int(node, key));
        if (options.group < 1) return fail("{}: block_size must be positive", node.where());
        return Ok{};
    }
    if (key == "fused")
        return as_bool(node, key).ok() ? Status(Ok{}) : fail("{}: fused is true or false", node.where());
    return fail("{}: algorithm 'gptq' has no option '{}'; it has: perc_damp, block_size, fused, layerwise",
                node.where(), key);
}

Status parse_best_option(const YamlNode& node, std::string_view key, Algorithm& a) {
    NibbleBestOptions& options = a.solver.best;
    const auto number = [&](float& value) -> Status {
        NIBBLE_TRY(const double parsed, as_number(node, key));
        if (!(parsed >= 0 && parsed <= 1e6)) return fail("{}: {} must be between 0 and 1e6", node.where(), key);
        value = static_cast<float>(parsed);
        return Ok{};
    };
    const auto flag = [&](bool& value) -> Status {
        NIBBLE_TRY(value, as_bool(node, key));
        return Ok{};
    };
    if (key == "damping") return number(options.damping);
    if (key == "row_damping") return number(options.row_damping);
    if (key == "mix") return number(options.mix);
    if (key == "sweeps") {
        NIBBLE_TRY(options.sweeps, as_int(node, key));
        if (options.sweeps < 0 || options.sweeps > 100)
            return fail("{}: sweeps must be between 0 and 100", node.where());
        return Ok{};
    }
    if (key == "token_weights") return flag(options.token_weights);
    if (key == "order_blocks") return flag(options.order_blocks);
    if (key == "row_feedback") return flag(options.row_feedback);
    return fail(
        "{}: algorithm 'nibble_best' has no option '{}'; it has: damping, row_damping, mix, token_weights, "
        "order_blocks, "
        "row_feedback",
        node.where(), key);
}

// Parses an option. Unsupported methods accept their options, because the method itself is rejected later. `ignored`:
// options without effect on a weight's bytes.
Status parse_option(const YamlNode& node, std::string_view key, Algorithm& a) {
    const auto number = [&](float& value) -> Status {
        NIBBLE_TRY(const double parsed, as_number(node, key));
        value = static_cast<float>(parsed);
        return Ok{};
    };
    const bool scaled = a.method == mse || a.method == local_hessian;
    if (key == "layerwise") {
        if (node.is_null()) return Ok{};
        if (node.is_map())
            return check_keys(node, "layerwise",
                              {"enable", "checkpoint_dir", "save_every", "get_qdq_activations_from_prev_layer",
                               "calib_mutates_weights"});
        return Result<Ok>(Ok{});
    }
    if (a.method == gptq && (key == "perc_damp" || key == "percdamp" || key == "block_size" || key == "fused"))
        return parse_gptq_option(node, key, a);
    if (a.method == nibble_best) return parse_best_option(node, key, a);
    if (key == "moe_calib_experts_ratio" || key == "distributed_sync" || key == "debug") return Ok{};
    if (key == "shared_states" && (a.method == max || a.method == mse)) {
        if (!node.is_null()) a.unsupported.push_back("shared_states");
        return Ok{};
    }
    if (a.method == max && key == "skip_forward_without_activation_calib") return Ok{};
    if (a.method == max && key == "sync_expert_weight_amax") {
        NIBBLE_TRY(const bool on, as_bool(node, key));
        if (on) a.unsupported.push_back("sync_expert_weight_amax");
        return Ok{};
    }
    if (scaled && key == "fp8_scale_sweep") {
        if (node.is_null()) return Ok{};
        NIBBLE_TRY(a.fp8_scale_sweep, as_bool(node, key));
        return Ok{};
    }
    if (scaled && (key == "start_multiplier" || key == "stop_multiplier" || key == "step_size")) {
        if (node.is_null()) return Ok{};
        return number(key == "step_size" ? a.step : key == "start_multiplier" ? a.start : a.stop);
    }
    if (a.method == gptq) return parse_gptq_option(node, key, a);
    if (a.method == awq_lite && key == "alpha_step") {
        NIBBLE_CHECK(number(a.alpha_step));
        if (!(a.alpha_step > 0 && a.alpha_step <= 1))
            return fail("{}: alpha_step {} is not in (0, 1]", node.where(), a.alpha_step);
        return Ok{};
    }
    if (a.method == max || a.method == awq_lite || a.method == mse || a.method == local_hessian)
        return fail("{}: algorithm '{}' has no option '{}'", node.where(), method_name(a.method), key);
    a.unsupported.push_back(std::string(key));  // the method itself is rejected when the recipe is resolved
    return Ok{};
}

WeightSolver::Kind solver_of(Algorithm::Method method) {
    return method == local_hessian ? WeightSolver::Kind::local_hessian
           : method == gptq        ? WeightSolver::Kind::gptq
           : method == nibble_best ? WeightSolver::Kind::nibble_best
                                   : WeightSolver::Kind::none;
}

Result<Algorithm> parse_algorithm(const YamlNode& node) {
    Algorithm a;
    a.where = node.where();
    if (node.is_null()) {
        a.method = none;
        return a;
    }
    if (!node.is_map()) {
        NIBBLE_TRY(a.method, parse_method(node));
        a.solver.kind = solver_of(a.method);
        a.fp8_scale_sweep = a.method == local_hessian;
        return a;
    }
    const YamlNode* method = node.find("method");
    if (!method) return fail("{}: algorithm needs 'method'", node.where());
    if (method->is_null()) {
        a.method = none;
    } else {
        NIBBLE_TRY(a.method, parse_method(*method));
    }
    a.solver.kind = solver_of(a.method);
    if (a.method == local_hessian) a.fp8_scale_sweep = true;
    for (const YamlEntry& entry : node.entries)
        if (entry.key != "method") NIBBLE_CHECK(parse_option(entry.value, entry.key, a));
    if ((a.method == mse || a.method == local_hessian) && !a.fp8_scale_sweep &&
        !(a.start > 0 && a.step > 0 && a.stop >= a.start && a.stop <= 64 && (a.stop - a.start) / a.step < 1000))
        return fail(
            "{}: {} multipliers from {} to {} in steps of {}: start and step must be positive, stop not below start, "
            "at most 1000 steps",
            node.where(), method_name(a.method), a.start, a.stop, a.step);
    return a;
}

}  // namespace

std::string to_string(const NumBits& bits) {
    return bits.integer ? fmt::format("int{}", bits.integer) : fmt::format("e{}m{}", bits.exponent, bits.mantissa);
}

std::string_view method_name(Algorithm::Method method) {
    for (const Method& m : methods)
        if (m.method == method) return m.name;
    return "?";
}

Result<QuantizerConfig> parse_quantizer_config(const YamlNode& node) {
    QuantizerConfig config;
    if (node.is_null()) return config;
    NIBBLE_CHECK(
        check_keys(node, "cfg",
                   {"enable", "num_bits", "effective_bits", "axis", "fake_quant", "unsigned", "narrow_range",
                    "learn_amax", "type", "block_sizes", "bias", "trt_high_precision_dtype", "calibrator", "rotate",
                    "pass_through_bwd", "backend", "backend_extra_args", "use_constant_amax", "constant_amax"}));
    for (const auto& [key, value] : node.entries) {
        if (key == "num_bits") {
            NIBBLE_TRY(config.num_bits, parse_num_bits(value, key));
        } else if (key == "axis") {
            if (value.is_null()) continue;
            NIBBLE_TRY(config.axis, parse_axis(value));
        } else if (key == "type") {
            NIBBLE_TRY(config.dynamic, parse_dynamic(value, key));
        } else if (key == "block_sizes") {
            if (!value.is_null()) NIBBLE_CHECK(parse_block_sizes(value, config));
        } else if (key == "effective_bits") {
            if (value.is_null()) continue;
            NIBBLE_TRY(config.effective_bits, as_number(value, key));
        } else if (key == "use_constant_amax") {
            NIBBLE_TRY(config.use_constant_amax, as_bool(value, key));
        } else if (key == "constant_amax") {
            if (value.is_null()) continue;
            NIBBLE_TRY(const double amax, as_number(value, key));
            if (!(amax > 0 && amax < 3e38)) return fail("{}: constant_amax must be positive and finite", value.where());
            config.constant_amax = static_cast<float>(amax);
        } else if (key == "fake_quant") {
            NIBBLE_TRY(const bool on, as_bool(value, key));
            if (!on) config.unsupported.push_back(key);
        } else if (key == "unsigned" || key == "narrow_range" || key == "learn_amax") {
            NIBBLE_TRY(const bool on, as_bool(value, key));
            if (on) config.unsupported.push_back(key);
        } else if (key == "rotate" && as_bool(value, key).ok()) {
            if (*as_bool(value, key)) config.unsupported.push_back(key);
        } else if (key == "bias" || key == "backend" || key == "rotate") {
            if (!value.is_null()) config.unsupported.push_back(key);
        } else if (key == "calibrator") {
            if (!(value.kind == YamlNode::Kind::scalar && value.text == "max")) config.unsupported.push_back(key);
        }
        // Ignored: enable (the rule's own value decides); trt_high_precision_dtype, pass_through_bwd and
        // backend_extra_args (no effect on bytes).
    }
    if (config.axis && !config.block_sizes.empty())
        return fail("{}: cfg has both 'axis' and 'block_sizes'; a quantizer accepts only one of them", node.where());
    if (config.use_constant_amax && config.constant_amax)
        return fail("{}: cfg has both 'use_constant_amax' and 'constant_amax'; a quantizer accepts only one of them",
                    node.where());
    return config;
}

Result<std::vector<Rule>> parse_rules(const YamlNode& list, std::string_view root) {
    if (!list.is_list()) return fail("{}: 'quant_cfg' must be a list of rules", list.where());
    std::vector<Rule> rules;
    for (const YamlNode& item : list.items) {
        NIBBLE_TRY(Rule rule, parse_rule(item, root));
        rules.push_back(std::move(rule));
    }
    return rules;
}

Result<std::vector<Algorithm>> parse_algorithms(const YamlNode& node) {
    std::vector<Algorithm> algorithms;
    const std::vector<YamlNode> one = {node};
    for (const YamlNode& item : node.is_list() ? node.items : one) {
        NIBBLE_TRY(Algorithm algorithm, parse_algorithm(item));
        algorithms.push_back(std::move(algorithm));
    }
    return algorithms;
}

}  // namespace nibble
