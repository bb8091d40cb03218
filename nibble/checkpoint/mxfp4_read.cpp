// Reads quant_method mxfp4, the format of the published GPT-OSS. Only stacks of experts are quantized.
#include "checkpoint/hf_catalog.h"
#include "checkpoint/quant_keys.h"

namespace nibble {

Result<ListedModule> read_mxfp4(const Json& quantization, Catalog& catalog) {
    NIBBLE_CHECK(refuse_changing_keys(quantization, "config.json: quantization_config"));
    NIBBLE_CHECK(catalog.take_stacked_codes());
    NIBBLE_CHECK(catalog.take_kv_scales(std::nullopt));
    return ListedModule([](std::string_view) { return true; });
}

}  // namespace nibble
