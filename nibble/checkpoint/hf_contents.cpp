#include "checkpoint/hf_contents.h"

#include "architecture/canonical_config.h"
#include "checkpoint/text_config.h"
#include "io/json_events.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

constexpr std::string_view config_name = "config.json", hf_name = "hf_quant_config.json";

// Removes the quantization_config (or its older name) from an object and returns it.
Result<std::optional<Json>> take_section_of(Json& object) {
    std::optional<Json> section;
    for (const char* key : {"quantization_config", "compression_config"}) {
        if (!object.contains(key)) continue;
        if (!object[key].is_null()) {
            if (section && *section != object[key])
                return fail("has a quantization_config and another compression_config");
            if (!object[key].is_object()) return fail("{}: must be an object", key);
            section = std::move(object[key]);
        }
        object.erase(key);
    }
    return section;
}

// Removes the section from the whole configuration. In multimodal models it may be inside the language model's part.
Result<std::optional<Json>> take_section(Json& config) {
    NIBBLE_TRY(auto section, take_section_of(config));
    for (auto& [key, value] : config.items()) {
        if (!value.is_object()) continue;
        NIBBLE_TRY(auto inner, take_section_of(value).within(key));
        if (!inner) continue;
        if (section && *section != *inner)
            return fail("{}: quantization_config: differs from the one of the top level", show_name(key));
        section = std::move(inner);
    }
    return section;
}

struct Method {
    std::string_view name;
    Dialect dialect;
};
// Names that vLLM and transformers use.
constexpr std::array methods{
    Method{"modelopt", Dialect::modelopt},
    Method{"modelopt_fp4", Dialect::modelopt},
    Method{"modelopt_mxfp8", Dialect::modelopt},
    Method{"modelopt_mixed", Dialect::modelopt},
    Method{"compressed-tensors", Dialect::compressed_tensors},
    Method{"compressed_tensors", Dialect::compressed_tensors},
    Method{"fp8", Dialect::fp8},
    Method{"fbgemm_fp8", Dialect::fp8},
    Method{"mxfp8", Dialect::fp8},
    Method{"mxfp4", Dialect::mxfp4},
    Method{"gptq", Dialect::gptq},
    Method{"awq", Dialect::awq},
};

Result<Dialect> dialect_of(const Json& section) {
    const std::string method = section.contains("quant_method") && section["quant_method"].is_string()
                                   ? section["quant_method"].get<std::string>()
                                   : std::string();
    if (const auto at = std::ranges::find(methods, method, &Method::name); at != methods.end()) return at->dialect;
    if (method.empty() && (section.contains("quant_algo") || section.contains("quantization")))
        return Dialect::modelopt;
    if (method.empty() && section.contains("config_groups")) return Dialect::compressed_tensors;
    std::string known;
    for (const Method& m : methods) known += fmt::format("{}{}", known.empty() ? "" : ", ", m.name);
    return fail("quantization_config: unknown quant_method {} (known: {})", show_name(method), known);
}

}  // namespace

Result<HfContents> read_contents(const ModelFiles& files, Json config, const std::optional<Json>& hf_quant_config,
                                 ScaleReading scales, StackReading stacks) {
    if (!config.is_object()) return fail("{}: must be an object", config_name);
    NIBBLE_TRY(const auto section, take_section(config).within(config_name));
    NIBBLE_CHECK(canonical_config(config));  // rejects keys with contradicting values
    Dialect dialect = hf_quant_config ? Dialect::modelopt : Dialect::plain;
    if (section) {
        NIBBLE_TRY(dialect, dialect_of(*section).within(config_name));
        if (hf_quant_config && dialect != Dialect::modelopt)
            return fail("{}: quant_method is {}, but {} exists too: remove the outdated one", config_name,
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
        case Dialect::fp8: {
            NIBBLE_TRY(listed, read_fp8(*section, catalog));
            break;
        }
        case Dialect::mxfp4: {
            NIBBLE_TRY(listed, read_mxfp4(*section, catalog));
            break;
        }
        case Dialect::gptq: {
            NIBBLE_TRY(listed, read_gptq(*section, catalog));
            break;
        }
        case Dialect::awq: {
            NIBBLE_TRY(listed, read_awq(*section, catalog));
            break;
        }
    }
    NIBBLE_CHECK(catalog.take_plain(listed, config, stacks));
    NIBBLE_TRY(auto entries, catalog.finish());
    for (CatalogEntry& e : entries)
        if (e.tensor.quantized()) e.tensor.listed_module = listed(module_of_tensor(e.tensor.name));
    return HfContents{dialect, std::move(config), catalog.kv(), std::move(entries), catalog.notes()};
}

}  // namespace nibble
