#include "checkpoint/modelopt_config.h"

#include "architecture/config_json.h"
#include "checkpoint/quant_keys.h"
#include "io/json_events.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

using A = ActivationFormat;
using F = Format;

// Readers use the first row with the name and group size. "mxfp4" does not determine the format of inputs, so they stay
// BF16.
constexpr std::array algos{
    ModeloptAlgo{"NVFP4", {F::nvfp4, A::nvfp4}, 16},
    ModeloptAlgo{"NVFP4", {F::nvfp4_bs32, A::nvfp4}, 32},
    ModeloptAlgo{"W4A16_NVFP4", {F::nvfp4, A::none}, 16},
    ModeloptAlgo{"W4A16_NVFP4", {F::nvfp4_bs32, A::none}, 32},
    ModeloptAlgo{"W4A8_NVFP4_FP8", {F::nvfp4_bs32, A::fp8}, 32},
    ModeloptAlgo{"FP8", {F::fp8, A::fp8}, 0},
    ModeloptAlgo{"FP8_PER_CHANNEL_PER_TOKEN", {F::fp8_row, A::fp8_token}, 0},
    ModeloptAlgo{"fp8_pb_wo", {F::fp8_block128, A::none}, 0},
    ModeloptAlgo{"MXFP8", {F::mxfp8, A::mxfp8}, 32},
    ModeloptAlgo{"mxfp4", {F::mxfp4, A::none}, 0},
    ModeloptAlgo{"mxfp4", {F::mxfp4, A::mxfp4}, 0},
    ModeloptAlgo{"W4A8_MXFP4_FP8", {F::mxfp4, A::fp8}, 32},
};

bool same_letters(std::string_view a, std::string_view b) {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
    return std::ranges::equal(a, b, {}, lower, lower);
}

std::string algo_names() {
    std::string text;
    std::string_view last;
    for (const ModeloptAlgo& a : algos) {
        if (a.name == last) continue;  // rows with the same name are adjacent
        text += fmt::format("{}{}", text.empty() ? "" : ", ", a.name);
        last = a.name;
    }
    return text;
}

Result<std::optional<int64_t>> group_size_of(const Json& object) {
    const auto at = object.find("group_size");
    if (at == object.end() || at->is_null()) return std::optional<int64_t>();
    if (!at->is_number_integer()) return fail("group_size: must be a whole number, found {}", show_value(*at));
    return std::optional(at->get<int64_t>());
}

Result<std::string> algo_name(const Json& object) {
    const auto at = object.find("quant_algo");
    if (at == object.end() || at->is_null()) return std::string();
    if (!at->is_string()) return fail("quant_algo: must be a name, found {}", show_value(*at));
    return at->get<std::string>();
}

Result<KvFormat> kv_from_name(const Json& value, std::string_view key) {
    if (value.is_null()) return KvFormat::none;
    if (value.is_string() && value == "FP8") return KvFormat::fp8;
    if (value.is_string() && value == "NVFP4") return KvFormat::nvfp4;
    return fail("{}: unknown value {} (known: null, FP8, NVFP4)", key, show_value(value));
}

// config.json contains FP8 as an object and any other format as its name.
Result<KvFormat> kv_from_scheme(const Json& value) {
    if (!value.is_object()) return kv_from_name(value, "kv_cache_scheme");
    if (value.value("dynamic", Json(false)) == false && value.value("num_bits", Json()) == 8 &&
        value.value("type", Json()) == "float")
        return KvFormat::fp8;
    return fail("kv_cache_scheme: unknown value {}", show_value(value));
}

Status read_layers(const Json& object, ModeloptConfig& config) {
    const auto at = object.find("quantized_layers");
    if (at == object.end() || !at->is_object() || at->empty())
        return fail("quantized_layers: quant_algo MIXED_PRECISION needs one entry per quantized layer");
    for (const auto& [module, layer] : at->items()) {
        const std::string where = fmt::format("quantized_layers: {}", show_name(module));
        NIBBLE_CHECK(refuse_changing_keys(layer, where));
        NIBBLE_TRY(const auto name, algo_name(layer).within(where));
        NIBBLE_TRY(const auto group_size, group_size_of(layer).within(where));
        NIBBLE_TRY(const ModeloptAlgo* algo, modelopt_algo_named(name, group_size).within(where));
        config.layers.emplace_back(module, algo);
    }
    return Ok{};
}

Status read_algo(const Json& object, std::optional<int64_t> group_size, ModeloptConfig& config) {
    NIBBLE_TRY(const auto name, algo_name(object));
    if (name.empty()) return Ok{};
    config.mixed = same_letters(name, "MIXED_PRECISION");
    if (config.mixed) return read_layers(object, config);
    NIBBLE_TRY(config.algo, modelopt_algo_named(name, group_size));
    return Ok{};
}

// Reads the config_groups, which repeat quant_algo. Uses the group size and whether inputs are unquantized (null), and
// rejects keys that change values.
Status read_groups(const Json& section, std::optional<int64_t>& group_size, ModeloptConfig& config) {
    const auto groups = section.find("config_groups");
    if (groups == section.end() || groups->is_null()) return Ok{};
    if (!groups->is_object()) return fail("config_groups: must be an object, found {}", show_value(*groups));
    bool plain_inputs = !groups->empty();
    for (const auto& [name, group] : groups->items()) {
        const std::string where = fmt::format("config_groups: {}", show_name(name));
        NIBBLE_CHECK(refuse_changing_keys(group, where));
        for (const char* part : {"input_activations", "weights"}) {
            if (!group.contains(part) || group[part].is_null()) continue;
            NIBBLE_CHECK(refuse_changing_keys(group[part], where + ": " + part));
        }
        plain_inputs = plain_inputs && group.contains("input_activations") && group["input_activations"].is_null();
        if (!group.contains("weights") || !group["weights"].is_object()) continue;
        NIBBLE_TRY(const auto size, group_size_of(group["weights"]).within(where));
        if (size) group_size = size;
    }
    config.plain_inputs = plain_inputs;
    return Ok{};
}

// Reads the keys that both documents have.
Status read_common(const Json& object, std::optional<int64_t> group_size, ModeloptConfig& config) {
    NIBBLE_TRY(const auto outer, group_size_of(object));
    NIBBLE_CHECK(read_algo(object, outer ? outer : group_size, config));
    if (object.contains("with_input_scale") && object["with_input_scale"] == false) config.plain_inputs = true;
    if (object.contains("kv_cache_quant_algo")) {
        NIBBLE_TRY(config.kv, kv_from_name(object["kv_cache_quant_algo"], "kv_cache_quant_algo"));
    }
    NIBBLE_TRY(config.exclude, read_names(object, object.contains("ignore") ? "ignore" : "exclude_modules"));
    return Ok{};
}

}  // namespace

const ModeloptAlgo* modelopt_algo_for(Scheme scheme) {
    const auto at = std::ranges::find(algos, scheme, &ModeloptAlgo::scheme);
    return at == algos.end() ? nullptr : &*at;
}

bool modelopt_says_inputs(Scheme scheme) {
    const ModeloptAlgo* algo = modelopt_algo_for(scheme);
    return !algo || std::ranges::none_of(std::span(algos.data(), algo), [&](const ModeloptAlgo& before) {
        return before.name == algo->name && before.group_size == algo->group_size;
    });
}

Result<const ModeloptAlgo*> modelopt_algo_named(std::string_view name, std::optional<int64_t> group_size) {
    const ModeloptAlgo* same_name = nullptr;
    for (const ModeloptAlgo& a : algos) {
        if (!same_letters(a.name, name)) continue;
        if (!group_size || a.group_size == 0 || a.group_size == *group_size) return &a;
        same_name = &a;
    }
    if (same_name) return fail("quant_algo {}: unknown group_size {}", same_name->name, *group_size);
    return fail("unknown quant_algo {} (known: {}, MIXED_PRECISION)", show_name(name), algo_names());
}

Result<ModeloptConfig> parse_modelopt_section(const Json& section) {
    NIBBLE_CHECK(refuse_changing_keys(section, "quantization_config"));
    // The first exports contained a copy of hf_quant_config.json here.
    if (section.contains("quantization")) return parse_hf_quant_config(section);
    ModeloptConfig config;
    std::optional<int64_t> group_size;
    NIBBLE_CHECK(read_groups(section, group_size, config));
    NIBBLE_CHECK(read_common(section, group_size, config));
    if (section.contains("kv_cache_scheme")) {
        NIBBLE_TRY(config.kv, kv_from_scheme(section["kv_cache_scheme"]));
    }
    return config;
}

Result<ModeloptConfig> parse_hf_quant_config(const Json& document) {
    if (!document.is_object()) return fail("the document: must be an object, found {}", show_value(document));
    const auto at = document.find("quantization");
    if (at == document.end()) return fail("quantization: is missing");
    NIBBLE_CHECK(refuse_changing_keys(*at, "quantization"));
    ModeloptConfig config;
    NIBBLE_CHECK(read_common(*at, std::nullopt, config));
    return config;
}

}  // namespace nibble
