// Reads Model Optimizer checkpoints: finds the algorithm of each module in the two documents.
#include "checkpoint/exclude_modules.h"
#include "checkpoint/hf_catalog.h"
#include "checkpoint/modelopt_config.h"
#include "io/json_events.h"

#include <algorithm>
#include <map>

namespace nibble {
namespace {

// The keys of quantized_layers: each names a module, or a container of modules ("...mlp.experts").
class LayerTable {
public:
    explicit LayerTable(const ModeloptConfig& config) {
        for (const auto& [module, algo] : config.layers) layers_.emplace(module, Layer{algo});
    }

    const ModeloptAlgo* find(std::string_view module) {
        for (std::string_view m = module; !m.empty(); m = parent_name(m)) {
            const auto at = layers_.find(m);
            if (at == layers_.end()) continue;
            at->second.used = true;
            return at->second.algo;
        }
        return nullptr;
    }

    Status all_used() const {
        for (const auto& [module, layer] : layers_)
            if (!layer.used)
                return fail("quantized_layers: {}: no quantized tensor of that name or below it", show_name(module));
        return Ok{};
    }

private:
    struct Layer {
        const ModeloptAlgo* algo;
        bool used = false;
    };
    std::map<std::string, Layer, std::less<>> layers_;
};

// Error: the two documents contradict each other. Engines read one or the other, so they would load different models.
Status check_agreement(const ModeloptConfig& a, const ModeloptConfig& b) {
    const auto name = [](const ModeloptConfig& c) {
        return c.mixed ? "MIXED_PRECISION" : c.algo ? c.algo->name : std::string_view("none");
    };
    if (name(a) != name(b))
        return fail("quant_algo is {} in config.json and {} in hf_quant_config.json", name(a), name(b));
    if (a.kv != b.kv)
        return fail("the KV cache format is {} in config.json and {} in hf_quant_config.json", kv_name(a.kv),
                    kv_name(b.kv));
    auto sorted = [](auto layers) {
        std::ranges::sort(layers);
        return layers;
    };
    if (sorted(a.layers) != sorted(b.layers))
        return fail("quantized_layers differ between config.json and hf_quant_config.json");
    return Ok{};
}

}  // namespace

Result<ListedModule> read_modelopt(const Json* config_section, const Json* hf_quant_config, Catalog& catalog) {
    ModeloptConfig config;
    std::vector<ModulePatterns> lists;  // one per document, because loaders read one or the other
    std::string where = "config.json";
    if (config_section) {
        NIBBLE_TRY(config, parse_modelopt_section(*config_section).within(where));
        lists.emplace_back(config.exclude);
    }
    if (hf_quant_config) {
        const std::string file = "hf_quant_config.json";
        NIBBLE_TRY(auto second, parse_hf_quant_config(*hf_quant_config).within(file));
        if (config_section) NIBBLE_CHECK(check_agreement(config, second));
        lists.emplace_back(second.exclude);
        // Only hf_quant_config.json always has the group size.
        if (!config_section || (config.algo && second.algo)) {
            config.algo = second.algo;
            where = file;
        }
        if (!config_section) config = std::move(second);
    }

    const ModulePatterns excluded(config.exclude);
    LayerTable layers(config);
    NIBBLE_CHECK(catalog.take_stacked_codes([&](std::string_view stack, Format format) {
        const ModeloptAlgo* algo = config.mixed ? layers.find(stack) : config.algo;
        const bool said = algo && algo->scheme.format == format && !config.plain_inputs;
        return said ? algo->scheme.activation : ActivationFormat::none;
    }));
    for (const std::string& stack : catalog.stacked_modules()) {
        if (config.mixed) layers.find(stack);
        if (excluded.matches(stack)) catalog.add_excluded(stack);
    }
    for (const std::string& module : catalog.quantized_modules()) {
        const ModeloptAlgo* algo = config.mixed ? layers.find(module) : config.algo;
        if (!algo)
            return fail("{}: {}: is quantized, but {}", where, show_name(module),
                        config.mixed ? "quantized_layers does not name it" : "there is no quant_algo");
        if (excluded.matches(module)) catalog.add_excluded(module);
        const std::string says = fmt::format("{} (quant_algo {})", where, algo->name);
        Scheme scheme = algo->scheme;
        if (config.plain_inputs) scheme.activation = ActivationFormat::none;
        NIBBLE_CHECK(catalog.take_quantized(module, scheme, algo->name, says));
    }
    if (config.mixed) NIBBLE_CHECK(layers.all_used().within(where));
    NIBBLE_CHECK(catalog.take_kv_scales(config.kv));
    NIBBLE_CHECK(catalog.take_zero_points());
    // A module that is not in quantized_layers stays unquantized without being listed.
    const auto table = std::make_shared<LayerTable>(std::move(layers));
    return ListedModule([mixed = config.mixed, lists, table](std::string_view module) {
        return (mixed && !table->find(module)) ||
               std::ranges::all_of(lists, [&](const ModulePatterns& list) { return list.names(module); });
    });
}

}  // namespace nibble
