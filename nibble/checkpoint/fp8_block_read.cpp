// DeepSeek-style FP8: 128 x 128 tiles, "weight_scale_inv" multiplies. Which modules are quantized shows only in the
// tensors.
#include "checkpoint/config_json.h"
#include "checkpoint/hf_catalog.h"
#include "io/json_events.h"

#include <algorithm>

namespace nibble {
namespace {

Status expect(const Json& section, const char* key, const Json& value, bool required) {
    const auto at = section.find(key);
    if (at == section.end() || at->is_null()) {
        if (!required) return Ok{};
        return fail("quantization_config: {}: is missing; only {} is known with quant_method fp8", key,
                    show_value(value));
    }
    if (*at == value) return Ok{};
    return fail("quantization_config: {}: {} is not known, only {}", key, show_value(*at), show_value(value));
}

}  // namespace

Result<ListedModule> read_fp8_block(const Json& quantization, Catalog& catalog) {
    const std::string where = "config.json";
    for (const auto& [key, value] : quantization.items()) {
        constexpr std::string_view known[] = {"quant_method", "weight_block_size",      "activation_scheme",
                                              "fmt",          "modules_to_not_convert", "scale_fmt"};
        if (std::ranges::find(known, key) == std::end(known))
            return fail("{}: quantization_config: unknown key {}", where, show_name(key));
    }
    NIBBLE_CHECK(expect(quantization, "weight_block_size", Json{128, 128}, true).within(where));
    NIBBLE_CHECK(expect(quantization, "activation_scheme", "dynamic", true).within(where));
    NIBBLE_CHECK(expect(quantization, "fmt", "e4m3", false).within(where));

    const Scheme scheme{Format::fp8_block128, ActivationFormat::fp8_group128};
    const std::string says = "config.json (quant_method fp8, 128 x 128)";
    for (const std::string& module : catalog.quantized_modules())
        NIBBLE_CHECK(catalog.take_quantized(module, scheme, "FP8 128x128", says));
    NIBBLE_CHECK(catalog.take_kv_scales(KvFormat::none));
    return ListedModule([](std::string_view) { return true; });
}

}  // namespace nibble
