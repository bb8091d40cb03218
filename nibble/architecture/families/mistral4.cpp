// mistral4: deepseek_v3's latent attention, queries that grow with the position, experts with a softmax router.
#include "architecture/family.h"

#include <cmath>

namespace nibble {
namespace {

Result<LatentAttentionConfig> read_attention(ConfigFields& f, int64_t context) {
    NIBBLE_TRY(LatentAttentionConfig a, read_latent_heads(f));
    const int64_t dims = a.rope.dims, head = a.nope_dim + dims;
    NIBBLE_CHECK(f.must_be("head_dim", head));
    const double share = static_cast<double>(dims) / static_cast<double>(head);
    NIBBLE_TRY(
        a.rope,
        read_rope(f, head, context,
                  {.scale = &a.scale, .partial = share, .query_beta = &a.query_beta, .query_period = &a.query_period}));
    if (a.rope.dims != dims)
        return f.bad("qk_rope_head_dim", fmt::format("partial_rotary_factor rotates {} dimensions", a.rope.dims));
    NIBBLE_TRY(a.rope.interleaved, f.boolean_or("rope_interleave", true));
    return a;
}

Result<ModelConfig> read_mistral4(ConfigFields& f, const std::string& root) {
    NIBBLE_TRY(Trunk t, read_trunk(f, root));
    NIBBLE_TRY(const MlpConfig mlp, read_mlp(f));
    NIBBLE_TRY(const LatentAttentionConfig a, read_attention(f, t.model.context));
    NIBBLE_TRY(MoeConfig moe, read_grouped_experts(f));
    moe.router = MoeConfig::Router::softmax;
    moe.selection_bias = false;
    NIBBLE_TRY(const int64_t dense, f.integer_or("first_k_dense_replace", 0, 0));
    for (int64_t l = 0; l < t.layers; ++l) add_layer(t, l, a, l < dense ? MixerConfig(mlp) : MixerConfig(moe));
    return std::move(t.model);
}

constexpr FieldSpelling mistral4_spellings[] = {{"n_routed_experts", "num_local_experts"}};

}  // namespace

namespace family {

extern const Family mistral4{.model_type = "mistral4",
                             .defaults = R"({
        "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 2048,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 32, "n_shared_experts": 1,
        "n_routed_experts": 128, "routed_scaling_factor": 1.0, "kv_lora_rank": 256, "q_lora_rank": 1024,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 64, "n_group": 1, "topk_group": 1,
        "num_experts_per_tok": 4, "first_k_dense_replace": 0, "norm_topk_prob": true, "hidden_act": "silu",
        "max_position_embeddings": 1048576, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
        "rope_interleave": true, "attention_bias": false, "rope_theta": 10000.0, "rope_parameters": {"rope_type": "yarn",
        "factor": 128.0, "original_max_position_embeddings": 8192, "beta_fast": 32.0, "beta_slow": 1.0,
        "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1}})",
                             .describe = read_mistral4,
                             .spellings = mistral4_spellings,
                             .multimodal = "mistral3",
                             .multimodal_root = "language_model.model."};

}  // namespace family
}  // namespace nibble
