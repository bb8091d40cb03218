#include "model/config/config.h"

#include "checkpoint/canonical_config.h"
#include "model/config/config_families.h"
#include "model/config/config_fields.h"

#include <algorithm>
#include <array>

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

struct MissingFeature {
    std::string_view feature;
    std::string_view model_types;  // separated by spaces
};

// What the engine lacks for the families that people ask for.
constexpr std::array missing_features{
    MissingFeature{"gated delta nets (linear attention) and gated attention",
                   " qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text "},
    MissingFeature{"soft caps of logits", " gemma2 "},
    MissingFeature{"per-layer head sizes and layer scalars", " gemma4 gemma4_text "},
    MissingFeature{"rotary embeddings of a part of the head", " glm4_moe glm4 glm phi3 minimax_m2 nemotron stablelm "},
    MissingFeature{"the indexer of sparse attention", " deepseek_v32 glm_moe_dsa "},
    MissingFeature{"attention sinks and the clamped GLU", " gpt_oss "},
    MissingFeature{"compressed keys, hyper-connections and grouped output projections", " deepseek_v4 "},
    MissingFeature{"block-sparse attention and the clamped GLU", " minimax_m3_vl minimax_m3_vl_text "},
    MissingFeature{"the scale of queries by position", " ministral3 mistral3 mistral4 "},
    MissingFeature{"chunked attention and layers without rotation", " llama4 llama4_text "},
    MissingFeature{"short convolutions", " lfm2 lfm2_moe lfm3 "},
    MissingFeature{"the multipliers of embeddings, residuals and logits",
                   " granite granitemoe granitemoehybrid falcon_h1 "},
    MissingFeature{"norms after the mixers", " olmo2 olmo3 exaone4 "},
    MissingFeature{"parallel attention and MLP", " cohere cohere2 phi "},
    MissingFeature{"Kimi delta attention", " kimi_linear "}};

Error not_run(std::string_view type) {
    std::string known, missing;
    for (const Family& family : families) known += fmt::format("{}{}", known.empty() ? "" : ", ", family.model_type);
    const std::string word = fmt::format(" {} ", type);
    for (const MissingFeature& m : missing_features)
        if (m.model_types.find(word) != m.model_types.npos) missing = fmt::format("; it lacks {}", m.feature);
    return fail(
        "config.json: model_type '{}' is not supported by the engine, which runs {}{}. inspect, verify, convert and "
        "quantize with --weights-only or --input-scales need no engine",
        type.substr(0, 60), known, missing);
}

}  // namespace

Result<ModelConfig> model_config(const Json& file, std::string_view root) {
    NIBBLE_TRY(const Json config, canonical_config(file));
    ConfigFields fields(config, "config.json");
    NIBBLE_TRY(const std::string type, fields.string_or("model_type", ""));
    const auto family = std::ranges::find(families, type, &Family::model_type);
    if (family == families.end()) return not_run(type);
    // A multimodal model: its language model.
    const bool inner = file.value("model_type", Json()) == "gemma3";
    if (root.empty()) root = inner ? "language_model.model." : family->root;
    NIBBLE_TRY(ModelConfig model, family->read(fields, std::string(root)));
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

}  // namespace nibble
