// A family of models is one table: its model_type, the spellings and defaults of its configuration class, and a
// function that builds the list of blocks from a canonical configuration (architecture/canonical_config.h).
// docs/add-a-model.md says how to add one.
#pragma once

#include "architecture/config_fields.h"
#include "architecture/config_rope.h"
#include "architecture/model_config.h"

#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace nibble {

// A field that is also written under another name: transformers' attribute_map of the family, the names that its
// __post_init__ still takes, and what publishers write.
struct FieldSpelling {
    const char* name;  // of transformers 5
    const char* other;
};

struct Family {
    std::string_view model_type;
    // Defaults of transformers' configuration class for fields that config.json leaves out, as JSON with Python's
    // constants. rope_theta stands for the default inside rope_parameters; with rope_local_base_freq, rope_parameters
    // has one object for full and one for sliding attention. Left out: ids of tokens (facts of the tokenizer), and
    // fields that the forward pass does not read.
    std::string_view defaults;
    // `root` stands before "layers.N" and the other names of the trunk.
    Result<ModelConfig> (*describe)(ConfigFields& fields, const std::string& root);
    std::span<const FieldSpelling> spellings{};
    std::string_view root = "model.";
    // The model_type of a multimodal model whose text_config is of this family, and its root. Empty: none.
    std::string_view multimodal{}, multimodal_root{};
    // llama.cpp's architecture (checkpoint/gguf_names.h), and the one of models with experts where that is another.
    // Empty: there is no GGUF writer.
    std::string_view gguf{}, gguf_experts{};
};

// Every family, in the order in which messages list them.
std::span<const Family* const> families();
// nullptr: the engine has no such family.
const Family* find_family(std::string_view model_type);
// The family of a multimodal model's text part, whose own model_type is `text_type` (may be empty); nullptr: none.
const Family* find_multimodal_family(std::string_view model_type, std::string_view text_type);

// Helpers that the tables share.
struct Trunk {
    ModelConfig model;
    int64_t layers = 0;
    std::string root;
};
// Sizes, norm epsilon, embedding and head names.
Result<Trunk> read_trunk(ConfigFields& fields, const std::string& root);
// heads, kv_heads, head_dim, scale = head_dim^-0.5; the rotary embedding is left to the caller.
Result<AttentionConfig> read_heads(ConfigFields& fields, int64_t hidden);
// hidden_act (silu) and intermediate_size.
Result<MlpConfig> read_mlp(ConfigFields& fields);
// attention_bias of q, k, v and o; mlp_bias.
Status read_biases(ConfigFields& fields, AttentionConfig& attention, MlpConfig& mlp);
// Layer by layer: does it slide? From layer_types, else from `otherwise`.
Result<std::vector<bool>> sliding_layers(ConfigFields& fields, int64_t layers,
                                         const std::function<bool(int64_t layer)>& otherwise);
// Experts with a sigmoid router as deepseek_v3 has them, gated, with one MLP for all shared experts. Keys:
// n_routed_experts, num_experts_per_tok, moe_intermediate_size, n_shared_experts, n_group, topk_group, norm_topk_prob,
// routed_scaling_factor.
Result<MoeConfig> read_grouped_experts(ConfigFields& fields);
// `experts` experts of `chosen` per token. Error: more chosen than there are.
Status set_experts(ConfigFields& fields, MoeConfig& moe, const char* experts, const char* chosen,
                   int64_t least_experts = 1);

struct LayerBlocks {
    BlockConfig& attention;
    BlockConfig& mlp;
};
// Adds attention and MLP of a llama-like layer: self_attn after input_layernorm, mlp after post_attention_layernorm.
LayerBlocks add_layer(Trunk& trunk, int64_t layer, MixerConfig attention, MixerConfig mlp);

// The same with norms after attention and MLP and none before: post_attention_layernorm, post_feedforward_layernorm.
LayerBlocks add_post_norm_layer(Trunk& trunk, int64_t layer, MixerConfig attention, MixerConfig mlp);
// Makes the last layer that was added the one for multi-token prediction, with the names of DeepSeek-V3 and GLM:
// eh_proj, enorm, hnorm and shared_head.norm under "layers.N", N the number of layers.
void make_prediction_layer(Trunk& trunk);

// Llama's model: every layer has the same attention, the MLP is gated by silu.
struct DenseModel {
    Trunk trunk;
    AttentionConfig attention;
    MlpConfig mlp;

    // Adds all layers, each with this attention and MLP.
    ModelConfig with_equal_layers() &&;
};
Result<DenseModel> read_dense(ConfigFields& fields, const std::string& root, const RopeReading& rope = {});

}  // namespace nibble
