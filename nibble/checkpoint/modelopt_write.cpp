// Makes Model Optimizer's documents for a list of tensors.
#include "architecture/config_json.h"
#include "checkpoint/exclude_modules.h"
#include "checkpoint/hf_layout.h"
#include "checkpoint/modelopt_config.h"
#include "io/json_events.h"

#include <algorithm>
#include <map>
#include <set>

namespace nibble {
namespace {

// The documents match this version. Engines check the producer's name; nibble.json records nibble itself.
constexpr std::string_view producer_name = "modelopt", producer_version = "0.47.0";

struct QuantizedModule {
    std::string name;
    const ModeloptAlgo* algo;
};

Result<std::vector<QuantizedModule>> quantized_modules(const ExportSpec& spec) {
    std::vector<QuantizedModule> modules;
    for (const ExportTensor& t : spec.tensors) {
        if (t.format == Format::none) continue;
        if (t.experts && format_layout(t.format).e8m0_scales)
            return fail("{}: Model Optimizer has no stacks of experts in {}; --format bf16 decodes them",
                        show_name(t.name), format_name(t.format));
        const ModeloptAlgo* algo = modelopt_algo_for({t.format, t.activation});
        if (!algo)
            return fail("{}: Model Optimizer has no {} weights with {} inputs{}", show_name(t.name),
                        format_name(t.format),
                        t.activation == ActivationFormat::none ? "unquantized" : activation_name(t.activation),
                        t.format == Format::fp8 && t.activation == ActivationFormat::none
                            ? "; --format compressed-tensors holds them"
                            : "");
        modules.push_back({std::string(module_of_tensor(t.name)), algo});
    }
    return modules;
}

// Returns "model.layers.0.mlp.experts" for "model.layers.0.mlp.experts.7.up_proj"; empty for other modules.
std::string_view expert_container(std::string_view module) {
    constexpr std::string_view mark = ".experts.";
    const size_t at = module.rfind(mark);
    if (at == std::string_view::npos) return {};
    const std::string_view number = module.substr(at + mark.size());
    if (number.empty() || number[0] < '0' || number[0] > '9') return {};
    return module.substr(0, at + mark.size() - 1);
}

// Returns one entry per layer, in order. Experts that all have the same algorithm are one entry under their container,
// because Model Optimizer treats them as one fused module.
std::vector<QuantizedModule> layer_entries(const std::vector<QuantizedModule>& modules) {
    std::map<std::string_view, const ModeloptAlgo*> containers;  // null: more than one algorithm
    for (const QuantizedModule& m : modules) {
        const std::string_view c = expert_container(m.name);
        if (c.empty()) continue;
        const auto [at, fresh] = containers.emplace(c, m.algo);
        if (!fresh && at->second != m.algo) at->second = nullptr;
    }
    std::vector<QuantizedModule> entries;
    std::set<std::string_view> done;
    for (const QuantizedModule& m : modules) {
        const auto c = containers.find(expert_container(m.name));
        if (c == containers.end() || !c->second)
            entries.push_back(m);
        else if (done.insert(c->first).second)
            entries.push_back({std::string(c->first), m.algo});
    }
    return entries;
}

Json layer_json(const ModeloptAlgo& algo) {
    Json j{{"quant_algo", algo.name}};
    if (algo.group_size) j["group_size"] = algo.group_size;
    return j;
}

Json float_args(int bits, int group_size) {
    Json j{{"dynamic", false}, {"num_bits", bits}, {"type", "float"}};
    if (group_size) j["group_size"] = group_size;
    return j;
}

// Returns the description of an algorithm in config_groups; null: a document with a single format has no groups.
Json group_json(const ModeloptAlgo& algo, bool mixed) {
    const std::string_view name = algo.name;
    const int g = algo.group_size;
    if (name == "FP8") return {{"input_activations", float_args(8, 0)}, {"weights", float_args(8, 0)}};
    if (name == "NVFP4") return {{"input_activations", float_args(4, g)}, {"weights", float_args(4, g)}};
    if (name == "W4A16_NVFP4") return {{"weights", float_args(4, g)}};
    if (!mixed) return nullptr;
    if (name == "FP8_PER_CHANNEL_PER_TOKEN") {
        Json weights = float_args(8, 0);
        weights["strategy"] = "channel";
        return {{"input_activations", float_args(8, 0)}, {"weights", std::move(weights)}};
    }
    if (name == "MXFP8") return {{"input_activations", float_args(8, g)}, {"weights", float_args(8, g)}};
    if (name.starts_with("W4A8_")) return {{"input_activations", float_args(8, 0)}, {"weights", float_args(4, g)}};
    return {{"quant_algo", name}};
}

Json mixed_groups(const std::vector<QuantizedModule>& entries) {
    std::vector<std::pair<const ModeloptAlgo*, std::vector<std::string>>> groups;  // in order of first appearance
    for (const QuantizedModule& e : entries) {
        auto at = std::ranges::find(groups, e.algo, [](const auto& g) { return g.first; });
        if (at == groups.end()) at = groups.insert(groups.end(), {e.algo, {}});
        at->second.push_back(e.name);
    }
    Json json = Json::object();
    for (size_t i = 0; i < groups.size(); ++i) {
        auto& [algo, targets] = groups[i];
        std::ranges::sort(targets);
        Json group = group_json(*algo, true);
        group["targets"] = targets;
        json[fmt::format("group_{}", i)] = std::move(group);
    }
    return json;
}

Json kv_algo(KvFormat kv) {
    switch (kv) {
        case KvFormat::none:
            return nullptr;
        case KvFormat::fp8:
        case KvFormat::fp8_cast:
            return "FP8";
        case KvFormat::nvfp4:
        case KvFormat::nvfp4_cast:
            return "NVFP4";
        case KvFormat::fp8_page:  // used by engines only; checkpoints cannot request it
            break;
    }
    __builtin_unreachable();
}

}  // namespace

Result<ModeloptDocuments> modelopt_documents(const ExportSpec& spec) {
    NIBBLE_TRY(const auto modules, quantized_modules(spec));
    if (modules.empty()) return fail("no tensor is quantized: the format of the output must be plain");
    const bool mixed =
        std::ranges::any_of(modules, [&](const QuantizedModule& m) { return m.algo != modules.front().algo; });

    Json quantization, section;
    const Json kv = kv_algo(spec.kv);
    Json exclude = Json::array();
    if (mixed) {
        const auto entries = layer_entries(modules);
        Json layers = Json::object();
        for (const QuantizedModule& e : entries) append_member(layers, e.name, layer_json(*e.algo));
        section["config_groups"] = mixed_groups(entries);
        section["quantized_layers"] = layers;
        quantization["quant_algo"] = "MIXED_PRECISION";
        quantization["kv_cache_quant_algo"] = kv;
        quantization["quantized_layers"] = std::move(layers);
    } else {
        const ModeloptAlgo& algo = *modules.front().algo;
        std::vector<std::string> names;
        for (const QuantizedModule& m : modules) names.push_back(m.name);
        exclude = compress_exclude_modules(unquantized_modules(spec), names);
        if (Json group = group_json(algo, false); !group.is_null()) {
            group["targets"] = {"Linear"};
            section["config_groups"]["group_0"] = std::move(group);
        }
        quantization["quant_algo"] = algo.name;
        quantization["kv_cache_quant_algo"] = kv;
        if (algo.group_size) quantization["group_size"] = algo.group_size;
        quantization["exclude_modules"] = exclude;
    }
    const Json producer{{"name", producer_name}, {"version", producer_version}};
    section["ignore"] = std::move(exclude);
    section["quant_algo"] = quantization["quant_algo"];
    if (kv == "FP8")
        section["kv_cache_scheme"] = float_args(8, 0);
    else if (!kv.is_null())
        section["kv_cache_scheme"] = kv;
    section["producer"] = producer;
    section["quant_method"] = "modelopt";
    return ModeloptDocuments{std::move(section), {{"producer", producer}, {"quantization", std::move(quantization)}}};
}

}  // namespace nibble
