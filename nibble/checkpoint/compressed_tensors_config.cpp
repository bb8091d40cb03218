#include "checkpoint/compressed_tensors_config.h"

#include "architecture/config_json.h"
#include "checkpoint/exclude_modules.h"
#include "checkpoint/quant_keys.h"
#include "io/json_events.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

using A = ActivationFormat;
using F = Format;

// One row per supported set of quantization arguments. `block_structure` is [128, 128] for the strategy "block".
struct ArgsRow {
    int bits;
    std::string_view strategy;
    int group_size;  // 0: none
    std::string_view dynamic;
    bool integer = false;
    bool symmetric = true;
};

struct WeightRow {
    ArgsRow args;
    Format format;
};
constexpr std::array weight_rows{
    WeightRow{{4, "tensor_group", 16, "false"}, F::nvfp4}, WeightRow{{8, "tensor", 0, "false"}, F::fp8},
    WeightRow{{8, "channel", 0, "false"}, F::fp8_row},     WeightRow{{8, "block", 0, "false"}, F::fp8_block128},
    WeightRow{{4, "group", 32, "false"}, F::mxfp4},        WeightRow{{8, "group", 32, "false"}, F::mxfp8},
};

struct InputRow {
    ArgsRow args;
    ActivationFormat activation;
};
constexpr std::array input_rows{
    InputRow{{4, "tensor_group", 16, "\"local\""}, A::nvfp4},
    InputRow{{4, "tensor_group", 16, "false"}, A::nvfp4},
    InputRow{{4, "tensor_group", 16, "true"}, A::nvfp4},  // stored scales are optional; the tensors decide
    InputRow{{8, "tensor", 0, "false"}, A::fp8},
    InputRow{{8, "token", 0, "true"}, A::fp8_token},
    InputRow{{8, "tensor", 0, "true"}, A::fp8_token},
    InputRow{{8, "group", 128, "true"}, A::fp8_group128},
    InputRow{{4, "group", 32, "true"}, A::mxfp4},
    InputRow{{8, "group", 32, "true"}, A::mxfp8},
};

// Returns the strategy that QuantizationArgs derives if the key is missing.
std::string_view default_strategy(int64_t group_size) {
    return group_size == 0 ? "tensor" : group_size < 0 ? "channel" : "group";
}

Result<ArgsRow> parse_args(const Json& args) {
    NIBBLE_CHECK(refuse_changing_keys(args, ""));
    const auto value_of = [&](const char* key, Json otherwise) {
        return args.contains(key) && !args[key].is_null() ? args[key] : otherwise;
    };
    const Json type = value_of("type", "int");
    if (type != "float" && type != "int") return fail("type: {} is not known, only int and float", show_value(type));
    const Json symmetric = value_of("symmetric", true);
    if (symmetric != true && (type != "int" || symmetric != false))
        return fail("symmetric: {} is not known, only true", show_value(symmetric));
    // "weight" and its alias only order columns during calibration; other values store a permutation.
    if (const Json order = value_of("actorder", false); order != false && order != "weight" && order != "static")
        return fail("actorder: {} is not known", show_value(order));

    ArgsRow row{.integer = type == "int", .symmetric = symmetric == true};
    const Json bits = value_of("num_bits", 8), size = value_of("group_size", 0);
    if (!bits.is_number_integer() || (bits != 4 && bits != 8))
        return fail("num_bits: {} is not known", show_value(bits));
    row.bits = bits.get<int>();
    if (!size.is_number_integer() || size < -1 || size > 4096)
        return fail("group_size: {} is not known", show_value(size));
    row.group_size = std::max(size.get<int>(), 0);
    const Json strategy = value_of("strategy", std::string(default_strategy(size.get<int>())));
    for (std::string_view known : {"tensor", "channel", "group", "block", "token", "tensor_group"})
        if (strategy.is_string() && strategy.get_ref<const std::string&>() == known) row.strategy = known;
    if (row.strategy.empty()) return fail("strategy: {} is not known", show_value(strategy));
    const Json block = value_of("block_structure", nullptr);
    if (row.strategy == "block" ? block != Json{128, 128} && block != "128x128" : !block.is_null())
        return fail("block_structure: {} is not known with strategy {}", show_value(block), row.strategy);
    const std::string dynamic = show_value(value_of("dynamic", false));
    for (std::string_view known : {"false", "true", "\"local\""})
        if (dynamic == known) row.dynamic = known;
    if (row.dynamic.empty()) return fail("dynamic: {} is not known", dynamic);
    return row;
}

bool same(const ArgsRow& a, const ArgsRow& b) {
    return a.integer == b.integer && a.bits == b.bits && a.strategy == b.strategy && a.group_size == b.group_size &&
           a.dynamic == b.dynamic;
}

std::string describe(const ArgsRow& a) {
    return fmt::format("type {}, num_bits {}, strategy {}, group_size {}, dynamic {}", a.integer ? "int" : "float",
                       a.bits, a.strategy, a.group_size, a.dynamic);
}

}  // namespace

std::string_view compressed_tensors_format(Scheme scheme) {
    const A a = scheme.activation;
    switch (scheme.format) {
        case F::nvfp4:
            return a == A::none || a == A::nvfp4 ? "nvfp4-pack-quantized" : "";
        case F::fp8:
        case F::fp8_row:
            return a == A::none || a == A::fp8 || a == A::fp8_token ? "float-quantized" : "";
        case F::fp8_block128:
            return a == A::none || a == A::fp8_group128 ? "float-quantized" : "";
        case F::mxfp4:
            return a == A::none || a == A::mxfp4 ? "mxfp4-pack-quantized" : "";
        case F::mxfp8:
            return a == A::none || a == A::mxfp8 ? "mxfp8-quantized" : "";
        case F::int4:
            return a == A::none ? "pack-quantized" : "";
        case F::nvfp4_bs32:
        case F::none:
            return "";
    }
    __builtin_unreachable();
}

Result<CompressedTensorsScheme> parse_group(const Json& group, const Json& outer_format) {
    NIBBLE_CHECK(refuse_changing_keys(group, ""));
    const auto part = [&](const char* key) { return group.contains(key) ? group[key] : Json(); };
    if (part("weights").is_null()) return fail("weights: is missing");

    CompressedTensorsScheme result;
    Scheme& scheme = result.scheme;
    NIBBLE_TRY(const ArgsRow weights, parse_args(part("weights")).within("weights"));
    if (weights.integer) {
        constexpr std::array<std::string_view, 3> strategies{"tensor", "channel", "group"};
        if (weights.dynamic != "false" || std::ranges::find(strategies, weights.strategy) == strategies.end())
            return fail("weights: {}: not a format nibble knows", describe(weights));
        result.integers = IntegerCodes{weights.bits, weights.group_size, weights.symmetric};
        result.format = weights.bits == 4 ? "INT4" : "INT8";
        return result;
    }
    const auto w = std::ranges::find_if(weight_rows, [&](const WeightRow& r) { return same(r.args, weights); });
    if (w == weight_rows.end()) return fail("weights: {}: not a format nibble knows", describe(weights));
    scheme.format = w->format;
    if (const Json args = part("input_activations"); !args.is_null()) {
        NIBBLE_TRY(const ArgsRow inputs, parse_args(args).within("input_activations"));
        const auto i = std::ranges::find_if(input_rows, [&](const InputRow& r) { return same(r.args, inputs); });
        if (i == input_rows.end()) return fail("input_activations: {}: not a format nibble knows", describe(inputs));
        scheme.activation = i->activation;
    }
    if (const Json args = part("output_activations"); !args.is_null()) {
        NIBBLE_TRY(const ArgsRow outputs, parse_args(args).within("output_activations"));
        if (!same(outputs, {8, "tensor", 0, "false"}))
            return fail("output_activations: {}: not a format nibble knows", describe(outputs));
        result.static_outputs = true;
    }
    result.format = compressed_tensors_format(scheme);
    if (result.format.empty())
        return fail("weights {} with inputs {}: not a combination nibble knows", format_name(scheme.format),
                    activation_name(scheme.activation));
    const Json own = part("format"), said = own.is_null() ? outer_format : own;
    // same layout
    const bool naive = said == "naive-quantized" && result.format == "float-quantized";
    const bool each_group = own.is_null() && said == "mixed-precision";
    if (!said.is_null() && said != std::string(result.format) && !naive && !each_group)
        return fail("format: {}, but these weights and inputs are stored as {}", show_value(said), result.format);
    return result;
}

// ---- Targets -------------------------------------------------------------------------------------------------------

Result<ModuleTargets> ModuleTargets::make(const std::vector<std::string>& targets) {
    constexpr std::string_view mark = "re:";
    ModuleTargets result;
    for (const std::string& target : targets) {
        if (target.starts_with(mark)) {
            auto pattern = PythonRegex::compile(std::string_view(target).substr(mark.size()));
            if (!pattern.ok()) return fail("pattern {}: {}", show_name(target), pattern.error().message());
            result.patterns_.push_back(*std::move(pattern));
        } else if (target == "Linear") {
            result.linear_ = true;
        } else {
            result.names_.push_back(target);
        }
    }
    std::ranges::sort(result.names_);
    return result;
}

Result<ModuleTargets::Kind> ModuleTargets::match(std::string_view module) const {
    if (std::ranges::binary_search(names_, module)) return by_name;
    for (const PythonRegex& pattern : patterns_) {
        NIBBLE_TRY(const bool matched, pattern.match(module));
        if (matched) return by_pattern;
    }
    return linear_ ? by_class : not_meant;
}

Result<bool> ModuleTargets::means(std::string_view module) const {
    for (const std::string& name : loader_names(module)) {
        NIBBLE_TRY(const Kind kind, match(name));
        if (kind != not_meant) return true;
    }
    return false;
}

}  // namespace nibble
