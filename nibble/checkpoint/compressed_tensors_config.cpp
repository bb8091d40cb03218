#include "checkpoint/compressed_tensors_config.h"

#include "checkpoint/config_json.h"
#include "checkpoint/exclude_modules.h"
#include "io/json_events.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

using A = ActivationFormat;
using F = Format;

// One row per way to describe numbers. `block_structure` is [128, 128] for the strategy "block".
struct ArgsRow {
    int bits;
    std::string_view strategy;
    int group_size;  // 0: none
    std::string_view dynamic;
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
    InputRow{{8, "tensor", 0, "false"}, A::fp8},
    InputRow{{8, "token", 0, "true"}, A::fp8_token},
    InputRow{{8, "group", 128, "true"}, A::fp8_group128},
    InputRow{{4, "group", 32, "true"}, A::mxfp4},
    InputRow{{8, "group", 32, "true"}, A::mxfp8},
};

constexpr std::array<std::string_view, 12> known_args{
    "num_bits", "type",        "symmetric", "group_size",      "strategy", "block_structure",
    "dynamic",  "scale_dtype", "zp_dtype",  "observer_kwargs", "observer", "actorder"};

Result<ArgsRow> parse_args(const Json& args) {
    if (!args.is_object()) return fail("must be an object, found {}", show_value(args));
    for (const auto& [key, value] : args.items())
        if (std::ranges::find(known_args, key) == known_args.end()) return fail("unknown key {}", show_name(key));
    const auto value_of = [&](const char* key, Json otherwise) { return args.contains(key) ? args[key] : otherwise; };
    if (const Json type = value_of("type", "int"); type != "float")
        return fail("type: {} is not known, only \"float\"", show_value(type));
    if (const Json symmetric = value_of("symmetric", true); symmetric != true)
        return fail("symmetric: {} is not known, only true", show_value(symmetric));
    if (const Json order = value_of("actorder", nullptr); !order.is_null() && order != false)
        return fail("actorder: {} is not known", show_value(order));

    ArgsRow row{};
    const Json bits = value_of("num_bits", nullptr), size = value_of("group_size", nullptr);
    if (!bits.is_number_integer() || (bits != 4 && bits != 8))
        return fail("num_bits: {} is not known", show_value(bits));
    row.bits = bits.get<int>();
    if (!size.is_null()) {
        if (!size.is_number_integer() || size < 0 || size > 4096)
            return fail("group_size: {} is not known", show_value(size));
        row.group_size = size.get<int>();
    }
    const Json strategy = value_of("strategy", nullptr);
    for (std::string_view known : {"tensor", "channel", "group", "block", "token", "tensor_group"})
        if (strategy.is_string() && strategy.get_ref<const std::string&>() == known) row.strategy = known;
    if (row.strategy.empty()) return fail("strategy: {} is not known", show_value(strategy));
    const Json block = value_of("block_structure", nullptr);
    if (row.strategy == "block" ? block != Json{128, 128} : !block.is_null())
        return fail("block_structure: {} is not known with strategy {}", show_value(block), row.strategy);
    const std::string dynamic = show_value(value_of("dynamic", false));
    for (std::string_view known : {"false", "true", "\"local\""})
        if (dynamic == known) row.dynamic = known;
    if (row.dynamic.empty()) return fail("dynamic: {} is not known", dynamic);
    return row;
}

bool same(const ArgsRow& a, const ArgsRow& b) {
    return a.bits == b.bits && a.strategy == b.strategy && a.group_size == b.group_size && a.dynamic == b.dynamic;
}

std::string describe(const ArgsRow& a) {
    return fmt::format("num_bits {}, strategy {}, group_size {}, dynamic {}", a.bits, a.strategy, a.group_size,
                       a.dynamic);
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
        case F::nvfp4_bs32:
        case F::none:
            return "";
    }
    __builtin_unreachable();
}

Result<CompressedTensorsScheme> parse_group(const Json& group, const Json& outer_format) {
    if (!group.is_object()) return fail("must be an object, found {}", show_value(group));
    for (const auto& [key, value] : group.items()) {
        constexpr std::string_view known[] = {"targets", "weights", "input_activations", "output_activations",
                                              "format"};
        if (std::ranges::find(known, key) == std::end(known)) return fail("unknown key {}", show_name(key));
    }
    if (group.contains("output_activations") && !group["output_activations"].is_null())
        return fail("output_activations: {} is not known, only null", show_value(group["output_activations"]));
    if (!group.contains("weights") || group["weights"].is_null()) return fail("weights: is missing");

    Scheme scheme;
    NIBBLE_TRY(const ArgsRow weights, parse_args(group["weights"]).within("weights"));
    const auto w = std::ranges::find_if(weight_rows, [&](const WeightRow& r) { return same(r.args, weights); });
    if (w == weight_rows.end()) return fail("weights: {}: not a format nibble knows", describe(weights));
    scheme.format = w->format;
    if (group.contains("input_activations") && !group["input_activations"].is_null()) {
        NIBBLE_TRY(const ArgsRow inputs, parse_args(group["input_activations"]).within("input_activations"));
        const auto i = std::ranges::find_if(input_rows, [&](const InputRow& r) { return same(r.args, inputs); });
        if (i == input_rows.end()) return fail("input_activations: {}: not a format nibble knows", describe(inputs));
        scheme.activation = i->activation;
    }
    const std::string_view format = compressed_tensors_format(scheme);
    if (format.empty())
        return fail("weights {} with inputs {}: not a combination nibble knows", format_name(scheme.format),
                    activation_name(scheme.activation));
    const Json said = group.contains("format") && !group["format"].is_null() ? group["format"] : outer_format;
    const bool naive = said == "naive-quantized" && format == "float-quantized";  // the same layout
    if (said != std::string(format) && !naive)
        return fail("format: {}, but these weights and inputs are stored as {}", show_value(said), format);
    return CompressedTensorsScheme{scheme, format};
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
