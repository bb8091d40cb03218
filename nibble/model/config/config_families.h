// One reader per model_type. `root` stands before "layers.N" and the other names of the trunk.
#pragma once

#include "model/config/config.h"
#include "model/config/config_fields.h"

#include <string>

namespace nibble {

Result<ModelConfig> read_llama(ConfigFields& fields, const std::string& root);
Result<ModelConfig> read_mistral(ConfigFields& fields, const std::string& root);
Result<ModelConfig> read_mixtral(ConfigFields& fields, const std::string& root);
Result<ModelConfig> read_qwen2(ConfigFields& fields, const std::string& root);
Result<ModelConfig> read_qwen3(ConfigFields& fields, const std::string& root);
Result<ModelConfig> read_qwen3_moe(ConfigFields& fields, const std::string& root);
Result<ModelConfig> read_gemma3(ConfigFields& fields, const std::string& root);
Result<ModelConfig> read_deepseek_v3(ConfigFields& fields, const std::string& root);
Result<ModelConfig> read_nemotron_h(ConfigFields& fields, const std::string& root);

// What the readers share.
struct Trunk {
    ModelConfig model;
    int64_t layers = 0;
};
// Sizes, norm epsilon, embedding and head names.
Result<Trunk> read_trunk(ConfigFields& fields, const std::string& root);
// heads, kv_heads, head_dim, scale = head_dim^-0.5; the rotary embedding is left to the caller.
Result<AttentionConfig> read_heads(ConfigFields& fields, int64_t hidden);
// hidden_act and intermediate_size.
Result<MlpConfig> read_mlp(ConfigFields& fields);
// Attention and MLP blocks of a llama-like layer.
void add_layer(Trunk& trunk, const std::string& root, int64_t layer, MixerConfig attention, MixerConfig mlp);

}  // namespace nibble
