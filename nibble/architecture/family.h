// A family of models is one table: its model_type, the spellings and defaults of its configuration class, and a
// function that builds the list of blocks from a canonical configuration (architecture/canonical_config.h).
// docs/developing/add-a-model.md describes how to add one.
#pragma once

#include "architecture/config_fields.h"
#include "architecture/config_rope.h"
#include "architecture/model_config.h"

#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace nibble {

// A field with a second name: from transformers' attribute_map of the family, from names that its __post_init__ still
// accepts, or from published files.
struct FieldSpelling {
    const char* name;  // name in transformers 5
    const char* other;
};

struct Family {
    std::string_view model_type;
    // Defaults of transformers' configuration class for fields that config.json leaves out, as JSON with Python's
    // constants. rope_theta and partial_rotary_factor are defaults inside rope_parameters; with rope_local_base_freq,
    // rope_parameters has one object for full and one for sliding attention. rope_parameters itself is the default
    // where a file has neither it nor rope_scaling. Not included: ids of tokens (properties of the tokenizer),
    // and fields that the forward pass does not use.
    std::string_view defaults;
    // Builds the model from the fields. `root`: prefix of "layers.N" and of the trunk's other names.
    Result<ModelConfig> (*describe)(ConfigFields& fields, const std::string& root);
    std::span<const FieldSpelling> spellings{};
    std::string_view root = "model.";
    // The model_type of multimodal models whose text_config is of this family, and the root of their names. Empty:
    // none.
    std::string_view multimodal{}, multimodal_root{};
    // llama.cpp's architecture (checkpoint/gguf_names.h), and that of models with experts if it differs. Empty: there
    // is no GGUF writer.
    std::string_view gguf{}, gguf_experts{};
};

// Returns every family, in the order of messages.
std::span<const Family* const> families();
// Returns the family; nullptr: the engine does not support it.
const Family* find_family(std::string_view model_type);
// Returns the family of a multimodal model's text part, whose own model_type is `text_type` (may be empty); nullptr:
// none.
const Family* find_multimodal_family(std::string_view model_type, std::string_view text_type);

// Helpers that the tables share. Errors name the key.
struct Trunk {
    ModelConfig model;
    int64_t layers = 0;
    std::string root;
};
// Reads sizes, norm epsilon (the field `eps`), and the names of embedding and head.
Result<Trunk> read_trunk(ConfigFields& fields, const std::string& root, const char* eps = "rms_norm_eps");
// Reads heads, kv_heads and head_dim, and sets scale = head_dim^-0.5. The caller reads the rotary embedding.
Result<AttentionConfig> read_heads(ConfigFields& fields, int64_t hidden);
// Returns head_dim^-0.5.
float score_scale(int head_dim);
// Reads deepseek_v3's sizes of latent attention; of the rotary embedding only the number of dimensions.
Result<LatentAttentionConfig> read_latent_heads(ConfigFields& fields);
// Reads hidden_act (silu) and intermediate_size.
Result<MlpConfig> read_mlp(ConfigFields& fields);
// Reads query_pre_attn_scalar and returns its power -0.5, the scale of q . k.
Result<float> read_score_scale(ConfigFields& fields);
// Returns sqrt(hidden) rounded to BF16, gemma's factor of embeddings.
float root_of_width(int64_t hidden);
// Reads the bound of a soft cap: a positive number, or 0 where the field is absent or null.
Result<float> read_cap(ConfigFields& fields, const char* key);
// Reads attention_bias (for q, k, v and o) and mlp_bias.
Status read_biases(ConfigFields& fields, AttentionConfig& attention, MlpConfig& mlp);
// Returns whether each layer has a sliding window: from layer_types, else from `otherwise`.
Result<std::vector<bool>> sliding_layers(ConfigFields& fields, int64_t layers,
                                         const std::function<bool(int64_t layer)>& otherwise);
// Reads deepseek_v3's experts: sigmoid router, gated, one MLP for all shared experts. Keys: n_routed_experts,
// num_experts_per_tok, moe_intermediate_size, n_shared_experts, n_group, topk_group, norm_topk_prob,
// routed_scaling_factor.
Result<MoeConfig> read_grouped_experts(ConfigFields& fields);
// Sets the number of experts from the key `experts`, and of those per token from `chosen`. Error: more chosen than
// there are.
Status set_experts(ConfigFields& fields, MoeConfig& moe, const char* experts, const char* chosen,
                   int64_t least_experts = 1);

// Returns the attention of a layer from that of all layers.
using AttentionOfLayer = std::function<LatentAttentionConfig(int64_t layer, const LatentAttentionConfig& a)>;
// Reads deepseek_v3's layers: latent attention, then an MLP where `dense` returns true, else experts. One more layer,
// for multi-token prediction, follows if it is announced. `attention_of` empty: equal attention.
Result<ModelConfig> read_latent_model(ConfigFields& fields, Trunk trunk,
                                      const std::function<bool(int64_t layer)>& dense,
                                      const AttentionOfLayer& attention_of = {});
// Returns whether each layer, and one more for prediction, has an MLP: from mlp_layer_types ("dense", "sparse"), else
// the first first_k_dense_replace (1) layers have one.
Result<std::vector<bool>> read_dense_layers(ConfigFields& fields, int64_t layers);

// Reads granite's multipliers of embeddings, scores and logits, and returns that of residual branches.
Result<float> read_granite_multipliers(ConfigFields& fields, ModelConfig& model, AttentionConfig& attention);

// Reads Mamba-2's sizes under the names mamba_n_heads, mamba_d_head, mamba_n_groups, mamba_d_state, mamba_d_conv.
// `inner`: heads times head_dim.
Result<MambaConfig> read_mamba_heads(ConfigFields& fields, int64_t inner);
// Reads time_step_limit: [dt_min, Infinity].
Status read_step_limit(ConfigFields& fields, MambaConfig& mamba);
// Reads the kind of every layer, one of `first` and `second`. Returns whether each is the first; empty: the field is
// absent.
Result<std::vector<bool>> read_layer_kinds(ConfigFields& fields, const char* key, int64_t layers,
                                           std::string_view first, std::string_view second);

struct LayerBlocks {
    BlockConfig& attention;
    BlockConfig& mlp;
};
// Adds attention and MLP of a llama-like layer: self_attn after input_layernorm, mlp after post_attention_layernorm.
LayerBlocks add_layer(Trunk& trunk, int64_t layer, MixerConfig attention, MixerConfig mlp);

// Adds a layer with norms only after attention and MLP: post_attention_layernorm, post_feedforward_layernorm.
LayerBlocks add_post_norm_layer(Trunk& trunk, int64_t layer, MixerConfig attention, MixerConfig mlp);
// Adds a layer with norms before and after attention and MLP: input_layernorm, post_attention_layernorm,
// pre_feedforward_layernorm, post_feedforward_layernorm.
LayerBlocks add_sandwich_layer(Trunk& trunk, int64_t layer, MixerConfig attention, MixerConfig mlp);
// Adds a layer as one block: attention and MLP read the same rows, after one norm, input_layernorm.
BlockConfig& add_parallel_layer(Trunk& trunk, int64_t layer, MixerConfig attention, MixerConfig mlp);
// Turns the last added layer into the layer for multi-token prediction, with the names of DeepSeek-V3 and GLM: eh_proj,
// enorm, hnorm and shared_head.norm in "layers.N", N the number of layers.
void make_prediction_layer(Trunk& trunk);

// Llama's model: the same attention and the same MLP, gated by silu, in every layer.
struct DenseModel {
    Trunk trunk;
    AttentionConfig attention;
    MlpConfig mlp;

    // Adds all layers with this attention and MLP.
    ModelConfig with_equal_layers() &&;
};
Result<DenseModel> read_dense(ConfigFields& fields, const std::string& root, const RopeReading& rope = {});

}  // namespace nibble
