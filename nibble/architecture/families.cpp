// The list of families, and the missing features of unsupported ones.
#include "architecture/canonical_config.h"
#include "architecture/family.h"
#include "base/nearest.h"

#include <algorithm>
#include <array>

namespace nibble {

namespace family {

extern const Family llama, mistral, mixtral, ministral3, qwen2, qwen3, qwen3_moe, qwen3_vl_moe, gemma3, deepseek_v3,
    kimi_k2, glm4_moe_lite, glm4_moe, dots1, nemotron_h, seed_oss, smollm3, granite, olmo2, olmo3, exaone4,
    hunyuan_v1_dense, hunyuan_v1_moe, phi3, minimax_m2, ernie4_5_moe, gemma2, gemma4, gpt_oss, starcoder2, stablelm,
    phimoe, mimo_v2_flash, mistral4, llama4, step3p5, cohere2, qwen3_next, qwen3_5, qwen3_5_moe, lfm2, lfm2_moe,
    granitemoehybrid, falcon_h1, kimi_linear, deepseek_v32, glm_moe_dsa, minimax_m3, deepseek_v4, granitemoe,
    granitemoeshared;

}  // namespace family

namespace {

constexpr std::array all_families{&family::llama,
                                  &family::mistral,
                                  &family::mixtral,
                                  &family::ministral3,
                                  &family::qwen2,
                                  &family::qwen3,
                                  &family::qwen3_moe,
                                  &family::qwen3_vl_moe,
                                  &family::gemma3,
                                  &family::deepseek_v3,
                                  &family::kimi_k2,
                                  &family::glm4_moe_lite,
                                  &family::glm4_moe,
                                  &family::dots1,
                                  &family::nemotron_h,
                                  &family::seed_oss,
                                  &family::smollm3,
                                  &family::granite,
                                  &family::olmo2,
                                  &family::olmo3,
                                  &family::exaone4,
                                  &family::hunyuan_v1_dense,
                                  &family::hunyuan_v1_moe,
                                  &family::phi3,
                                  &family::minimax_m2,
                                  &family::ernie4_5_moe,
                                  &family::qwen3_next,
                                  &family::qwen3_5,
                                  &family::qwen3_5_moe,
                                  &family::gemma2,
                                  &family::gemma4,
                                  &family::gpt_oss,
                                  &family::starcoder2,
                                  &family::stablelm,
                                  &family::phimoe,
                                  &family::mimo_v2_flash,
                                  &family::mistral4,
                                  &family::llama4,
                                  &family::step3p5,
                                  &family::cohere2,
                                  &family::lfm2,
                                  &family::lfm2_moe,
                                  &family::granitemoehybrid,
                                  &family::falcon_h1,
                                  &family::kimi_linear,
                                  &family::deepseek_v32,
                                  &family::glm_moe_dsa,
                                  &family::minimax_m3,
                                  &family::deepseek_v4,
                                  &family::granitemoe,
                                  &family::granitemoeshared};

struct MissingFeature {
    std::string_view feature;
    std::string_view model_types;  // separated by spaces
};

// Features that the engine lacks, with the families that need them.
constexpr std::array missing_features{
    MissingFeature{"LayerNorm with weights of 1 + w", " nemotron "},
    MissingFeature{"norms before and after the mixers with interleaved partial rotation", " glm4 "},
    MissingFeature{"sliding windows with stacked experts", " granitemoe_swa "},
    MissingFeature{"parallel attention and MLP with LayerNorm of this kind", " cohere phi "}};

Error unknown_family(std::string_view type) {
    std::string missing;
    const std::string word = fmt::format(" {} ", type);
    for (const MissingFeature& m : missing_features)
        if (m.model_types.find(word) != m.model_types.npos) missing = fmt::format("; it lacks {}", m.feature);
    if (missing.empty()) {
        std::vector<std::string> known;
        for (const Family* f : all_families) known.emplace_back(f->model_type);
        missing = did_you_mean(type, known);
    }
    return fail(
        "config.json: model_type '{}' is not supported by the engine, which runs {} families{}. inspect, verify, "
        "convert and quantize with --weights-only or --input-scales (a file, or a number such as 1) need no engine",
        type.substr(0, 60), all_families.size(), missing);
}

Status read_special_tokens(const Json& config, ModelConfig& model) {
    ConfigFields f(config, "config.json");
    NIBBLE_TRY(const auto eos, f.integers("eos_token_id"));
    model.eos.assign(eos.begin(), eos.end());
    NIBBLE_TRY(const auto bos, f.integers("bos_token_id"));
    if (!bos.empty()) model.bos = static_cast<int32_t>(bos[0]);
    return Ok{};
}

}  // namespace

std::span<const Family* const> families() { return all_families; }

const Family* find_family(std::string_view model_type) {
    const auto found = std::ranges::find(all_families, model_type, &Family::model_type);
    return found == all_families.end() ? nullptr : *found;
}

const Family* find_multimodal_family(std::string_view model_type, std::string_view text_type) {
    const Family* part = nullptr;
    for (const Family* family : all_families) {
        if (model_type.empty() || family->multimodal != model_type) continue;
        if (!part || family->model_type == text_type) part = family;
    }
    return part;
}

namespace {

// Bounds the lists of tensors: each expert of each layer has its own names, and the number comes from an untrusted
// file. The largest published models have about 30,000 experts in all layers together.
Status check_experts(const ModelConfig& model) {
    constexpr int64_t most = 262'144;
    int64_t experts = 0;
    const auto count = [&](const std::vector<BlockConfig>& blocks) {
        for (const BlockConfig& block : blocks)
            if (const auto* moe = std::get_if<MoeConfig>(&block.mixer)) experts += moe->experts;
    };
    count(model.blocks);
    if (model.prediction) count(model.prediction->blocks);
    if (experts <= most) return Ok{};
    return fail("config.json: {} experts in all layers together; at most {} are supported", experts, most);
}

}  // namespace

Result<ModelConfig> model_config(const Json& file, std::string_view root) {
    NIBBLE_TRY(const Json config, canonical_config(file));
    ConfigFields fields(config, "config.json");
    NIBBLE_TRY(const std::string type, fields.string_or("model_type", ""));
    const Family* found = find_family(type);
    if (!found) return unknown_family(type);
    const bool inner = !found->multimodal.empty() && file.value("model_type", Json()) == Json(found->multimodal);
    if (root.empty()) root = inner ? found->multimodal_root : found->root;
    NIBBLE_TRY(ModelConfig model, found->describe(fields, std::string(root)));
    for (const char* key : {"eos_token_id", "bos_token_id"}) fields.ignore(key);
    NIBBLE_CHECK(fields.all_read());
    NIBBLE_CHECK(read_special_tokens(config, model));
    NIBBLE_CHECK(check_experts(model));
    model.architecture = type;
    choose_rope_factors(model, model.context);
    int index = 0;
    for (BlockConfig& block : model.blocks) block.index = index++;
    if (model.prediction)
        for (BlockConfig& block : model.prediction->blocks) block.index = index++;
    return model;
}

}  // namespace nibble
