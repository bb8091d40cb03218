#include "checkpoint/hf_contents.h"

#include "checkpoint/canonical_config.h"
#include "checkpoint/text_config.h"
#include "io/json_events.h"

namespace nibble {
namespace {

constexpr std::string_view config_name = "config.json", hf_name = "hf_quant_config.json";

// Removes quantization_config (or its older name) from the configuration and returns it.
Result<std::optional<Json>> take_section(Json& config) {
    std::optional<Json> section;
    for (const char* key : {"quantization_config", "compression_config"}) {
        if (!config.contains(key)) continue;
        if (!config[key].is_null()) {
            if (section) return fail("has both quantization_config and compression_config");
            if (!config[key].is_object()) return fail("{}: must be an object", key);
            section = std::move(config[key]);
        }
        config.erase(key);
    }
    for (const auto& [key, value] : config.items())
        if (value.is_object() && value.contains("quantization_config") && !value["quantization_config"].is_null())
            return fail("{}: quantization_config: must stand at the top level", show_name(key));
    return section;
}

Result<Dialect> dialect_of(const Json& section) {
    const std::string method = section.contains("quant_method") && section["quant_method"].is_string()
                                   ? section["quant_method"].get<std::string>()
                                   : std::string();
    if (method == "modelopt") return Dialect::modelopt;
    if (method == "compressed-tensors") return Dialect::compressed_tensors;
    if (method == "fp8") return Dialect::fp8_block;
    if (method.empty() && section.contains("quant_algo")) return Dialect::modelopt;
    if (method.empty() && section.contains("config_groups")) return Dialect::compressed_tensors;
    return fail(
        "quantization_config: unknown quant_method {} (known: modelopt, compressed-tensors, fp8 with "
        "weight_block_size)",
        show_name(method));
}

}  // namespace

Result<HfContents> read_contents(const ModelFiles& files, Json config, const std::optional<Json>& hf_quant_config,
                                 ScaleReading scales) {
    if (!config.is_object()) return fail("{}: must be an object", config_name);
    NIBBLE_TRY(const auto section, take_section(config).within(config_name));
    NIBBLE_CHECK(canonical_config(config));  // spellings that contradict one another
    Dialect dialect = hf_quant_config ? Dialect::modelopt : Dialect::plain;
    if (section) {
        NIBBLE_TRY(dialect, dialect_of(*section).within(config_name));
        if (hf_quant_config && dialect != Dialect::modelopt)
            return fail("{}: quant_method is {}, but {} is there too: remove the one that is stale", config_name,
                        dialect_name(dialect), hf_name);
    }
    Catalog catalog(files, dialect, declared_dtype(config).value_or(DType::bf16), scales);
    ListedModule listed = [](std::string_view) { return false; };
    switch (dialect) {
        case Dialect::plain:
        case Dialect::gguf:
            break;
        case Dialect::modelopt: {
            NIBBLE_TRY(listed, read_modelopt(section ? &*section : nullptr,
                                             hf_quant_config ? &*hf_quant_config : nullptr, catalog));
            break;
        }
        case Dialect::compressed_tensors: {
            NIBBLE_TRY(listed, read_compressed_tensors(*section, catalog));
            break;
        }
        case Dialect::fp8_block: {
            NIBBLE_TRY(listed, read_fp8_block(*section, catalog));
            break;
        }
    }
    NIBBLE_CHECK(catalog.take_plain(listed, config));
    NIBBLE_TRY(auto entries, catalog.finish());
    for (CatalogEntry& e : entries)
        if (e.tensor.quantized()) e.tensor.listed_module = listed(module_of_weight(e.tensor.name));
    return HfContents{dialect, std::move(config), catalog.kv(), std::move(entries)};
}

}  // namespace nibble
