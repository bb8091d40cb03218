#include "model/config/config.h"

#include "model/config/config_families.h"
#include "model/config/config_fields.h"

#include <array>
#include <cmath>

namespace nibble {
namespace {

struct Family {
    std::string_view model_type;
    Result<ModelConfig> (*read)(ConfigFields& fields, const std::string& root);
    std::string_view root;
};

constexpr std::array families{Family{"llama", read_llama, "model."},
                              Family{"mistral", read_mistral, "model."},
                              Family{"mixtral", read_mixtral, "model."},
                              Family{"qwen2", read_qwen2, "model."},
                              Family{"qwen3", read_qwen3, "model."},
                              Family{"qwen3_moe", read_qwen3_moe, "model."},
                              Family{"gemma3_text", read_gemma3, "model."},
                              Family{"deepseek_v3", read_deepseek_v3, "model."},
                              Family{"nemotron_h", read_nemotron_h, "backbone."}};

Status read_special_tokens(const Json& config, ModelConfig& model) {
    ConfigFields f(config, "config.json");
    NIBBLE_TRY(const auto eos, f.integers("eos_token_id"));
    model.eos.assign(eos.begin(), eos.end());
    NIBBLE_TRY(const auto bos, f.integers("bos_token_id"));
    if (!bos.empty()) model.bos = static_cast<int32_t>(bos[0]);
    return Ok{};
}

}  // namespace

Result<ModelConfig> model_config(const Json& config, std::string_view root) {
    if (!config.is_object()) return fail("config.json is not an object");
    ConfigFields fields(config, "config.json");
    NIBBLE_TRY(const std::string type, fields.string_or("model_type", ""));
    // A multimodal model: its language model.
    if (type == "gemma3") {
        const Json* text = fields.find("text_config");
        if (!text || !text->is_object()) return fail("config.json: gemma3 without a text_config");
        Json inner = *text;
        for (const char* key : {"eos_token_id", "bos_token_id", "tie_word_embeddings"})
            if (!inner.contains(key) && config.contains(key)) inner[key] = config[key];
        inner["model_type"] = "gemma3_text";
        return model_config(inner, root.empty() ? "language_model.model." : root);
    }
    std::string known;
    for (const Family& family : families) {
        known += fmt::format("{}{}", known.empty() ? "" : ", ", family.model_type);
        if (family.model_type != type) continue;
        NIBBLE_TRY(ModelConfig model, family.read(fields, std::string(root.empty() ? family.root : root)));
        for (const char* key : {"eos_token_id", "bos_token_id"}) fields.ignore(key);
        NIBBLE_CHECK(fields.all_read());
        NIBBLE_CHECK(read_special_tokens(config, model));
        model.architecture = type;
        int index = 0;
        for (BlockConfig& block : model.blocks) block.index = index++;
        if (model.prediction)
            for (BlockConfig& block : model.prediction->blocks) block.index = index++;
        return model;
    }
    return fail("config.json: model_type '{}' is not supported (choose from {})", type.substr(0, 60), known);
}

}  // namespace nibble
