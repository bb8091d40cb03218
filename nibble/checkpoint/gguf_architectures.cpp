// The table of llama.cpp's architectures. Sources: llama.cpp's src/models/*.cpp (keys, tensors and scales that each
// graph reads), conversion/*.py (keys that its converters write) and gguf-py's constants.
#include "checkpoint/gguf_names.h"

#include <array>

namespace nibble {
namespace {

using enum GgufField::Kind;
using Head = GgufArchitecture::Head;

// The graphs of these architectures do not apply scales in the plain MLP (llama.cpp in llama-cpp-python 0.3.36), so
// NVFP4 weights run but give wrong outputs (found by tests/oracles/llamacpp_families.py).
constexpr std::array<std::string_view, 3> plain_mlp{"ffn_gate", "ffn_up", "ffn_down"};

// These graphs apply the scale of attn_output and of the head alone.
constexpr std::array<std::string_view, 6> attention_and_mlp{"attn_q",   "attn_k", "attn_v",
                                                            "ffn_gate", "ffn_up", "ffn_down"};

// These graphs apply no scales at all, or did not in the versions that were read.
constexpr std::array<std::string_view, 14> all_kinds{
    "attn_q",        "attn_k",      "attn_v",        "attn_output",    "ffn_gate",     "ffn_up",         "ffn_down",
    "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp", "output"};

// The graph of qwen3next multiplies with the scales of experts, attn_output and output alone.
constexpr std::array<std::string_view, 8> qwen3next_unscaled{
    "attn_q", "attn_k", "attn_v", "ssm_in", "ssm_out", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"};

constexpr std::array granite_fields{GgufField{"logit_scale", "logits_scaling", number},
                                    GgufField{"residual_scale", "residual_multiplier", number},
                                    GgufField{"embedding_scale", "embedding_multiplier", number},
                                    GgufField{"attention.scale", "attention_multiplier", number}};
constexpr std::array linear_biases{GgufBias{"attention_bias", "attn_q.bias"}, GgufBias{"mlp_bias", "ffn_up.bias"}};
constexpr std::array cohere2_fields{GgufField{"logit_scale", "logit_scale", number}};
constexpr std::array gemma2_fields{GgufField{"attn_logit_softcapping", "attn_logit_softcapping", number},
                                   GgufField{"final_logit_softcapping", "final_logit_softcapping", number}};
constexpr std::array grouped_fields{GgufField{"expert_count", "n_routed_experts"},
                                    GgufField{"expert_used_count", "num_experts_per_tok"},
                                    GgufField{"expert_feed_forward_length", "moe_intermediate_size"},
                                    GgufField{"expert_shared_count", "n_shared_experts"},
                                    GgufField{"leading_dense_block_count", "first_k_dense_replace"},
                                    GgufField{"expert_weights_scale", "routed_scaling_factor", number},
                                    GgufField{"expert_weights_norm", "norm_topk_prob", boolean},
                                    GgufField{"expert_group_count", "n_group"},
                                    GgufField{"expert_group_used_count", "topk_group"}};
constexpr std::array glm4_biases{GgufBias{"attention_bias", "attn_q.bias"},
                                 GgufBias{"use_qk_norm", "attn_q_norm.weight"}};
constexpr std::array minimax_m2_fields{GgufField{"expert_count", "num_local_experts"},
                                       GgufField{"expert_used_count", "num_experts_per_tok"},
                                       GgufField{"expert_feed_forward_length", "intermediate_size"}};
constexpr std::array starcoder2_biases{GgufBias{"use_bias", "attn_q.bias"}};
constexpr std::array stablelm_fields{GgufField{"use_parallel_residual", "use_parallel_residual", boolean}};
constexpr std::array stablelm_biases{GgufBias{"use_qkv_bias", "attn_q.bias"}};

constexpr std::array architectures{
    GgufArchitecture{.name = "llama", .neighbours = true, .stray_biases = true},
    GgufArchitecture{.name = "qwen2", .unscaled = plain_mlp, .stray_biases = true},
    GgufArchitecture{.name = "qwen3", .stray_biases = true},
    GgufArchitecture{.name = "qwen3moe", .stray_biases = true},
    GgufArchitecture{.name = "gemma3", .unscaled = plain_mlp},
    GgufArchitecture{.name = "nemotron_h", .stray_biases = true},
    GgufArchitecture{.name = "nemotron_h_moe", .stray_biases = true},
    GgufArchitecture{.name = "qwen3next", .unscaled = qwen3next_unscaled, .ffn_norm = "post_attention_norm"},
    GgufArchitecture{.name = "qwen35", .ffn_norm = "post_attention_norm"},
    GgufArchitecture{.name = "qwen35moe", .ffn_norm = "post_attention_norm"},
    GgufArchitecture{.name = "seed_oss", .unscaled = plain_mlp, .ffn_norm = "post_attention_norm"},
    GgufArchitecture{.name = "granite",
                     .unscaled = plain_mlp,
                     .neighbours = true,
                     .model_type = "granite",
                     .hf_class = "GraniteForCausalLM",
                     .fields = granite_fields,
                     .biases = linear_biases,
                     .llama3_rope = true},
    GgufArchitecture{.name = "smollm3",
                     .unscaled = all_kinds,
                     .neighbours = true,
                     .model_type = "smollm3",
                     .hf_class = "SmolLM3ForCausalLM",
                     .unrotated_period = 4},
    GgufArchitecture{.name = "olmo2",
                     .unscaled = attention_and_mlp,
                     .model_type = "olmo2",
                     .hf_class = "Olmo2ForCausalLM",
                     .sliding_type = "olmo3",
                     .sliding_class = "Olmo3ForCausalLM",
                     .head = Head::own,
                     .square = true,
                     .window_period = 4},
    GgufArchitecture{.name = "exaone4",
                     .unscaled = all_kinds,
                     .model_type = "exaone4",
                     .hf_class = "Exaone4ForCausalLM",
                     .llama3_rope = true},
    GgufArchitecture{.name = "cohere2",
                     .neighbours = true,
                     .model_type = "cohere2",
                     .hf_class = "Cohere2ForCausalLM",
                     .epsilon = "layer_norm_eps",
                     .layer_norm = true,
                     .fields = cohere2_fields,
                     .head = Head::tied,
                     .square = true,
                     .window_period = 4},
    GgufArchitecture{.name = "gemma2",
                     .unscaled = plain_mlp,
                     .model_type = "gemma2",
                     .hf_class = "Gemma2ForCausalLM",
                     .activation_field = "hidden_activation",
                     .activation = "gelu_pytorch_tanh",
                     .fields = gemma2_fields,
                     .head = Head::tied,
                     .window_period = 2,
                     .query_scale_layers = 46},
    GgufArchitecture{.name = "dots1",
                     .unscaled = all_kinds,
                     .model_type = "dots1",
                     .hf_class = "Dots1ForCausalLM",
                     .fields = grouped_fields,
                     .head = Head::own,
                     .gating = 2},
    GgufArchitecture{.name = "glm4moe",
                     .unscaled = all_kinds,
                     .ffn_norm = "post_attention_norm",
                     .model_type = "glm4_moe",
                     .hf_class = "Glm4MoeForCausalLM",
                     .fields = grouped_fields,
                     .biases = glm4_biases,
                     .partial = "partial_rotary_factor",
                     .gating = 2},
    GgufArchitecture{.name = "minimax-m2",
                     .unscaled = all_kinds,
                     .model_type = "minimax_m2",
                     .hf_class = "MiniMaxM2ForCausalLM",
                     .fields = minimax_m2_fields,
                     .head = Head::own,
                     .partial = "rotary_dim",
                     .gating = 2},
    GgufArchitecture{.name = "starcoder2",
                     .unscaled = all_kinds,
                     .model_type = "starcoder2",
                     .hf_class = "Starcoder2ForCausalLM",
                     .activation = "gelu_pytorch_tanh",
                     .epsilon = "norm_epsilon",
                     .layer_norm = true,
                     .biases = starcoder2_biases},
    GgufArchitecture{.name = "stablelm",
                     .unscaled = all_kinds,
                     .model_type = "stablelm",
                     .hf_class = "StableLmForCausalLM",
                     .epsilon = "layer_norm_eps",
                     .layer_norm = true,
                     .fields = stablelm_fields,
                     .biases = stablelm_biases,
                     .head = Head::own,
                     .partial = "partial_rotary_factor"},
    GgufArchitecture{.name = "mistral3",
                     .neighbours = true,
                     .model_type = "ministral3",
                     .hf_class = "Ministral3ForCausalLM",
                     .llama3_rope = true,
                     .yarn_mscale = true},
};

}  // namespace

std::span<const GgufArchitecture> gguf_architectures() { return architectures; }

}  // namespace nibble
