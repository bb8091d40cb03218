#include "checkpoint/gguf_names.h"

#include "io/gguf_value.h"

#include <array>
#include <charconv>

namespace nibble {
namespace {

using enum GgufTransform;

// Mistral and Mixtral files carry the architecture "llama" too; Mixtral's are those with experts.
constexpr std::array llama_rows{
    GgufNameRow{"token_embd.weight", "model.embed_tokens.weight"},
    GgufNameRow{"output_norm.weight", "model.norm.weight"},
    GgufNameRow{"output.weight", "lm_head.weight"},
    GgufNameRow{"blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"},
    GgufNameRow{"blk.{}.attn_q.*", "model.layers.{}.self_attn.q_proj.*", rope_q},
    GgufNameRow{"blk.{}.attn_k.*", "model.layers.{}.self_attn.k_proj.*", rope_k},
    GgufNameRow{"blk.{}.attn_v.*", "model.layers.{}.self_attn.v_proj.*"},
    GgufNameRow{"blk.{}.attn_output.*", "model.layers.{}.self_attn.o_proj.*"},
    GgufNameRow{"blk.{}.ffn_norm.weight", "model.layers.{}.post_attention_layernorm.weight"},
    GgufNameRow{"blk.{}.ffn_gate.*", "model.layers.{}.mlp.gate_proj.*"},
    GgufNameRow{"blk.{}.ffn_up.*", "model.layers.{}.mlp.up_proj.*"},
    GgufNameRow{"blk.{}.ffn_down.*", "model.layers.{}.mlp.down_proj.*"},
    GgufNameRow{"blk.{}.ffn_gate_inp.weight", "model.layers.{}.block_sparse_moe.gate.weight"},
    GgufNameRow{"blk.{}.ffn_gate_exps.weight", "model.layers.{}.block_sparse_moe.experts.{e}.w1.weight", experts},
    GgufNameRow{"blk.{}.ffn_down_exps.weight", "model.layers.{}.block_sparse_moe.experts.{e}.w2.weight", experts},
    GgufNameRow{"blk.{}.ffn_up_exps.weight", "model.layers.{}.block_sparse_moe.experts.{e}.w3.weight", experts},
};

// qwen2, qwen3, qwen3moe: one table, each file uses its part. No permutation: llama.cpp runs them in Hugging Face's
// order.
constexpr std::array qwen_rows{
    GgufNameRow{"token_embd.weight", "model.embed_tokens.weight"},
    GgufNameRow{"output_norm.weight", "model.norm.weight"},
    GgufNameRow{"output.weight", "lm_head.weight"},
    GgufNameRow{"blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"},
    GgufNameRow{"blk.{}.attn_q.*", "model.layers.{}.self_attn.q_proj.*"},
    GgufNameRow{"blk.{}.attn_k.*", "model.layers.{}.self_attn.k_proj.*"},
    GgufNameRow{"blk.{}.attn_v.*", "model.layers.{}.self_attn.v_proj.*"},
    GgufNameRow{"blk.{}.attn_output.*", "model.layers.{}.self_attn.o_proj.*"},
    GgufNameRow{"blk.{}.attn_q_norm.weight", "model.layers.{}.self_attn.q_norm.weight"},
    GgufNameRow{"blk.{}.attn_k_norm.weight", "model.layers.{}.self_attn.k_norm.weight"},
    GgufNameRow{"blk.{}.ffn_norm.weight", "model.layers.{}.post_attention_layernorm.weight"},
    GgufNameRow{"blk.{}.ffn_gate.weight", "model.layers.{}.mlp.gate_proj.weight"},
    GgufNameRow{"blk.{}.ffn_up.weight", "model.layers.{}.mlp.up_proj.weight"},
    GgufNameRow{"blk.{}.ffn_down.weight", "model.layers.{}.mlp.down_proj.weight"},
    GgufNameRow{"blk.{}.ffn_gate_inp.weight", "model.layers.{}.mlp.gate.weight"},
    GgufNameRow{"blk.{}.ffn_gate_exps.weight", "model.layers.{}.mlp.experts.{e}.gate_proj.weight", experts},
    GgufNameRow{"blk.{}.ffn_up_exps.weight", "model.layers.{}.mlp.experts.{e}.up_proj.weight", experts},
    GgufNameRow{"blk.{}.ffn_down_exps.weight", "model.layers.{}.mlp.experts.{e}.down_proj.weight", experts},
};

constexpr std::array gemma3_rows{
    GgufNameRow{"token_embd.weight", "model.embed_tokens.weight"},
    GgufNameRow{"output_norm.weight", "model.norm.weight", norm_shift},
    GgufNameRow{"output.weight", "lm_head.weight"},
    GgufNameRow{"blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight", norm_shift},
    GgufNameRow{"blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight"},
    GgufNameRow{"blk.{}.attn_k.weight", "model.layers.{}.self_attn.k_proj.weight"},
    GgufNameRow{"blk.{}.attn_v.weight", "model.layers.{}.self_attn.v_proj.weight"},
    GgufNameRow{"blk.{}.attn_output.weight", "model.layers.{}.self_attn.o_proj.weight"},
    GgufNameRow{"blk.{}.attn_q_norm.weight", "model.layers.{}.self_attn.q_norm.weight", norm_shift},
    GgufNameRow{"blk.{}.attn_k_norm.weight", "model.layers.{}.self_attn.k_norm.weight", norm_shift},
    GgufNameRow{"blk.{}.post_attention_norm.weight", "model.layers.{}.post_attention_layernorm.weight", norm_shift},
    GgufNameRow{"blk.{}.ffn_norm.weight", "model.layers.{}.pre_feedforward_layernorm.weight", norm_shift},
    GgufNameRow{"blk.{}.post_ffw_norm.weight", "model.layers.{}.post_feedforward_layernorm.weight", norm_shift},
    GgufNameRow{"blk.{}.ffn_gate.weight", "model.layers.{}.mlp.gate_proj.weight"},
    GgufNameRow{"blk.{}.ffn_up.weight", "model.layers.{}.mlp.up_proj.weight"},
    GgufNameRow{"blk.{}.ffn_down.weight", "model.layers.{}.mlp.down_proj.weight"},
};

constexpr std::array nemotron_h_rows{
    GgufNameRow{"token_embd.weight", "backbone.embeddings.weight"},
    GgufNameRow{"output_norm.weight", "backbone.norm_f.weight"},
    GgufNameRow{"output.weight", "lm_head.weight"},
    GgufNameRow{"blk.{}.attn_norm.weight", "backbone.layers.{}.norm.weight"},
    GgufNameRow{"blk.{}.ssm_in.*", "backbone.layers.{}.mixer.in_proj.*"},
    GgufNameRow{"blk.{}.ssm_conv1d.weight", "backbone.layers.{}.mixer.conv1d.weight", conv1d},
    GgufNameRow{"blk.{}.ssm_conv1d.bias", "backbone.layers.{}.mixer.conv1d.bias"},
    GgufNameRow{"blk.{}.ssm_dt.bias", "backbone.layers.{}.mixer.dt_bias"},
    GgufNameRow{"blk.{}.ssm_a", "backbone.layers.{}.mixer.A_log", a_log},
    GgufNameRow{"blk.{}.ssm_d", "backbone.layers.{}.mixer.D", column},
    GgufNameRow{"blk.{}.ssm_norm.weight", "backbone.layers.{}.mixer.norm.weight", flatten},
    GgufNameRow{"blk.{}.ssm_out.*", "backbone.layers.{}.mixer.out_proj.*"},
    GgufNameRow{"blk.{}.attn_q.*", "backbone.layers.{}.mixer.q_proj.*"},
    GgufNameRow{"blk.{}.attn_k.*", "backbone.layers.{}.mixer.k_proj.*"},
    GgufNameRow{"blk.{}.attn_v.*", "backbone.layers.{}.mixer.v_proj.*"},
    GgufNameRow{"blk.{}.attn_output.*", "backbone.layers.{}.mixer.o_proj.*"},
    GgufNameRow{"blk.{}.ffn_up.*", "backbone.layers.{}.mixer.up_proj.*"},
    GgufNameRow{"blk.{}.ffn_down.*", "backbone.layers.{}.mixer.down_proj.*"},
    GgufNameRow{"blk.{}.ffn_gate_inp.weight", "backbone.layers.{}.mixer.gate.weight"},
    GgufNameRow{"blk.{}.exp_probs_b.bias", "backbone.layers.{}.mixer.gate.e_score_correction_bias", none, true},
    GgufNameRow{"blk.{}.ffn_up_exps.weight", "backbone.layers.{}.mixer.experts.{e}.up_proj.weight", experts},
    GgufNameRow{"blk.{}.ffn_down_exps.weight", "backbone.layers.{}.mixer.experts.{e}.down_proj.weight", experts},
    GgufNameRow{"blk.{}.ffn_up_shexp.weight", "backbone.layers.{}.mixer.shared_experts.up_proj.weight"},
    GgufNameRow{"blk.{}.ffn_down_shexp.weight", "backbone.layers.{}.mixer.shared_experts.down_proj.weight"},
    GgufNameRow{"blk.{}.ffn_latent_down.weight", "backbone.layers.{}.mixer.fc1_latent_proj.weight"},
    GgufNameRow{"blk.{}.ffn_latent_up.weight", "backbone.layers.{}.mixer.fc2_latent_proj.weight"},
};

// Their graphs give the plain MLP no scales (llama.cpp as llama-cpp-python 0.3.36 vendors it): NVFP4 there runs and
// predicts nonsense; tests/oracles/llamacpp_families.py found it.
constexpr std::array<std::string_view, 3> plain_mlp{"ffn_gate", "ffn_up", "ffn_down"};

constexpr std::array architectures{
    GgufArchitecture{"llama", llama_rows},
    GgufArchitecture{"qwen2", qwen_rows, plain_mlp},
    GgufArchitecture{"qwen3", qwen_rows},
    GgufArchitecture{"qwen3moe", qwen_rows},
    GgufArchitecture{"gemma3", gemma3_rows, plain_mlp},
    GgufArchitecture{"nemotron_h", nemotron_h_rows},
    GgufArchitecture{"nemotron_h_moe", nemotron_h_rows},
};

// Takes a decimal number without leading zeros off the front of `text`.
std::optional<int64_t> take_number(std::string_view& text) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const size_t digits = end - text.data();
    if (error != std::errc() || value < 0 || (text[0] == '0' && digits > 1)) return std::nullopt;
    text.remove_prefix(digits);
    return value;
}

std::optional<GgufNameMatch> match(std::string_view pattern, std::string_view name, const GgufNameRow& row) {
    GgufNameMatch found{&row, -1, -1, {}};
    while (!pattern.empty()) {
        if (pattern.starts_with("{")) {
            const bool expert = pattern.starts_with("{e}");
            const auto number = take_number(name);
            if (!number) return std::nullopt;
            (expert ? found.expert : found.layer) = *number;
            pattern.remove_prefix(expert ? 3 : 2);
        } else if (pattern == "*") {
            if (name != "weight" && name != "bias") return std::nullopt;
            found.suffix = name == "bias" ? "bias" : "weight";  // not a view of the caller's string
            return found;
        } else {
            if (name.empty() || name[0] != pattern[0]) return std::nullopt;
            name.remove_prefix(1);
            pattern.remove_prefix(1);
        }
    }
    return name.empty() ? std::optional(found) : std::nullopt;
}

std::string expand(std::string_view pattern, const GgufNameMatch& values) {
    std::string out;
    while (!pattern.empty()) {
        if (pattern.starts_with("{e}")) {
            out += fmt::format("{}", values.expert);
            pattern.remove_prefix(3);
        } else if (pattern.starts_with("{}")) {
            out += fmt::format("{}", values.layer);
            pattern.remove_prefix(2);
        } else if (pattern == "*") {
            out += values.suffix;
            pattern = {};
        } else {
            out += pattern[0];
            pattern.remove_prefix(1);
        }
    }
    return out;
}

}  // namespace

Result<GgufArchitecture> find_gguf_architecture(std::string_view name) {
    std::string known;
    for (const GgufArchitecture& architecture : architectures) {
        if (architecture.name == name) return architecture;
        known += fmt::format("{}{}", known.empty() ? "" : ", ", architecture.name);
    }
    return fail("GGUF architecture {} is not supported (supported: {})", gguf_shown(name), known);
}

std::optional<GgufNameMatch> match_gguf_name(const GgufArchitecture& architecture, std::string_view gguf_name) {
    for (const GgufNameRow& row : architecture.rows)
        if (auto found = match(row.gguf, gguf_name, row)) return found;
    return std::nullopt;
}

std::optional<GgufNameMatch> match_hf_name(const GgufArchitecture& architecture, std::string_view hf_name) {
    for (const GgufNameRow& row : architecture.rows)
        if (auto found = match(row.hf, hf_name, row)) return found;
    return std::nullopt;
}

std::string gguf_name_of(const GgufNameMatch& match) { return expand(match.row->gguf, match); }
std::string hf_name_of(const GgufNameMatch& match) { return expand(match.row->hf, match); }

}  // namespace nibble
