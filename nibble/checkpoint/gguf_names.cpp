#include "checkpoint/gguf_names.h"

#include "architecture/family.h"
#include "io/gguf_value.h"
#include "io/json_events.h"

#include <algorithm>

namespace nibble {
namespace {

using enum GgufTransform;

class GgufPartList {
public:
    GgufPartList(const ModelConfig& model, const GgufArchitecture& architecture)
        : model_(model), architecture_(architecture) {}

    std::vector<GgufPart> list() {
        add(model_.embedding, "token_embd.weight");
        for (size_t i = 0; i < model_.blocks.size(); ++i) {
            const BlockConfig& b = model_.blocks[i];
            layer_ = b.layer;
            // A layer with one block has one norm; its name is that of attention's norm.
            const bool first = i == 0 || model_.blocks[i - 1].layer != b.layer;
            norm(b.norm, first ? "attn_norm" : architecture_.ffn_norm);
            norm(b.post_norm, first ? "post_attention_norm" : "post_ffw_norm");
            std::visit([&](const auto& mixer) { this->mixer(b, mixer); }, b.mixer);
        }
        layer_ = -1;
        norm(model_.norm, "output_norm");
        if (model_.head != model_.embedding) add(model_.head, "output.weight");
        return std::move(parts_);
    }

private:
    GgufPart& add(std::string hf, std::string_view gguf, GgufTransform transform = none) {
        parts_.push_back({.hf = std::move(hf),
                          .gguf = layer_ < 0 ? std::string(gguf) : fmt::format("blk.{}.{}", layer_, gguf),
                          .transform = transform});
        return parts_.back();
    }
    void norm(const std::string& tensor, std::string_view kind) {
        if (tensor.empty()) return;
        add(tensor, std::string(kind) + ".weight", model_.norm_plus_one ? norm_shift : none);
        if (model_.norm_bias && tensor.ends_with(".weight"))
            add(tensor.substr(0, tensor.size() - 6) + "bias", std::string(kind) + ".bias");
    }
    void bias(const std::string& module, std::string_view kind, bool announced, GgufTransform transform = none,
              int heads = 0, int head_dim = 0) {
        if (!announced && !architecture_.stray_biases) return;
        GgufPart& part = add(module + ".bias", std::string(kind) + ".bias", transform);
        part.count = heads, part.head_dim = head_dim;
    }
    void linear(const std::string& module, std::string_view kind, bool has_bias) {
        add(module + ".weight", std::string(kind) + ".weight");
        bias(module, kind, has_bias);
    }
    // Adds q or k.
    void rotated(const std::string& module, std::string_view kind, bool has_bias, int heads, const AttentionConfig& a) {
        const bool moves = architecture_.neighbours && a.rope.dims > 0 && !a.rope.interleaved;
        if (!moves) return linear(module, kind, has_bias);
        GgufPart& weight = add(module + ".weight", std::string(kind) + ".weight", rope);
        weight.count = heads, weight.head_dim = a.head_dim;
        bias(module, kind, has_bias, rope, heads, a.head_dim);
    }

    void mixer(const BlockConfig& b, const AttentionConfig& a) {
        if (a.qkv_proj.empty()) {
            rotated(b.name(a.q_proj), "attn_q", a.qkv_bias, a.heads, a);
            rotated(b.name(a.k_proj), "attn_k", a.qkv_bias, a.kv_heads, a);
            linear(b.name(a.v_proj), "attn_v", a.qkv_bias);
        } else {
            linear(b.name(a.qkv_proj), "attn_qkv", a.qkv_bias);
        }
        linear(b.name(a.o_proj), "attn_output", a.out_bias);
        if (a.qk_norm == QkNorm::none) return;
        norm(b.name(a.q_norm) + ".weight", "attn_q_norm");
        norm(b.name(a.k_norm) + ".weight", "attn_k_norm");
    }
    void mixer(const BlockConfig&, const CompressedAttentionConfig&) {}
    void mixer(const BlockConfig&, const LatentAttentionConfig&) {}  // no listed architecture has it
    // Adds the tensors "ffn_gate" + `suffix` ...; in a mixture, those of expert `expert` of `count`.
    void mlp(const std::string& prefix, const MlpConfig& m, std::string_view suffix, int64_t expert = -1,
             int64_t count = 0) {
        const auto one = [&](const std::string& module, std::string_view kind) {
            const std::string gguf = fmt::format("{}{}", kind, suffix);
            if (expert < 0) return linear(prefix + "." + module, gguf, m.bias);
            GgufPart& part = add(prefix + "." + module + ".weight", gguf + ".weight", experts);
            part.expert = expert, part.count = count;
        };
        if (!m.gate_up_proj.empty()) {
            one(m.gate_up_proj, "ffn_up");
        } else {
            if (m.gated) one(m.gate_proj, "ffn_gate");
            one(m.up_proj, "ffn_up");
        }
        one(m.down_proj, "ffn_down");
    }
    void mixer(const BlockConfig& b, const MlpConfig& m) { mlp(b.prefix, m, ""); }
    void mixer(const BlockConfig& b, const MoeConfig& m) {
        add(b.name(m.gate) + ".weight", "ffn_gate_inp.weight");
        if (m.selection_bias) add(b.name(m.selection_bias_name), "exp_probs_b.bias").keep_f32 = true;
        for (int e = 0; e < m.experts; ++e)
            mlp(fmt::format("{}.{}", b.name(m.experts_name), e), m.expert, "_exps", e, m.experts);
        if (m.shared.intermediate > 0) mlp(b.name(m.shared_name), m.shared, "_shexp");
        if (m.shared_gate) add(b.name(m.shared_gate_name) + ".weight", "ffn_gate_inp_shexp.weight");
        if (m.latent == 0) return;
        linear(b.name("fc1_latent_proj"), "ffn_latent_down", false);
        linear(b.name("fc2_latent_proj"), "ffn_latent_up", false);
    }
    void mixer(const BlockConfig&, const ShortConvConfig&) {}  // no architecture of the list has it
    void mixer(const BlockConfig&, const PerLayerInputConfig&) {}
    void mixer(const BlockConfig& b, const ParallelConfig& m) {
        for (const Branch& branch : m.branches) {
            const BlockConfig alone{.layer = b.layer, .prefix = branch.prefix, .mixer = branch.mixer};
            std::visit([&](const auto& mixer) { this->mixer(alone, mixer); }, branch.mixer);
        }
    }
    void mixer(const BlockConfig& b, const MambaConfig& m) {
        linear(b.name("in_proj"), "ssm_in", m.projection_bias);
        add(b.name("conv1d.weight"), "ssm_conv1d.weight", conv1d);
        if (m.conv_bias) add(b.name("conv1d.bias"), "ssm_conv1d.bias");
        add(b.name("dt_bias"), "ssm_dt.bias");
        add(b.name("A_log"), "ssm_a", a_log);
        add(b.name("D"), "ssm_d", column);
        add(b.name("norm.weight"), "ssm_norm.weight", flatten).count = m.groups;
        linear(b.name("out_proj"), "ssm_out", m.projection_bias);
    }

    // qwen3next reads rows by key head under the names of its first converter; of split projections, llama.cpp reads
    // the value heads in an order of its own.
    void mixer(const BlockConfig& b, const GatedDeltaConfig& g) {
        const auto add_heads = [&](const std::string& hf, std::string_view gguf, int64_t first, int64_t size,
                                   GgufTransform transform = none) {
            GgufPart& part = add(b.name(hf), gguf, transform);
            if (!g.by_key_head && g.values_per_key() > 1)
                part.value_rows = {first, g.key_heads, g.values_per_key(), size};
        };
        if (g.by_key_head) {
            add(b.name("in_proj_qkvz.weight"), "ssm_in.weight");
            add(b.name("in_proj_ba.weight"), "ssm_ba.weight");
        } else {
            add_heads("in_proj_qkv.weight", "attn_qkv.weight", 2 * g.keys(), g.value_dim);
            add_heads("in_proj_z.weight", "attn_gate.weight", 0, g.value_dim);
            add_heads("in_proj_b.weight", "ssm_beta.weight", 0, 1);
            add_heads("in_proj_a.weight", "ssm_alpha.weight", 0, 1);
        }
        add_heads("conv1d.weight", "ssm_conv1d.weight", 2 * g.keys(), g.value_dim, conv1d);
        add_heads("dt_bias", "ssm_dt.bias", 0, 1);
        add_heads("A_log", "ssm_a", 0, 1, a_log_flat);
        add(b.name("norm.weight"), "ssm_norm.weight");
        GgufPart& out = add(b.name("out_proj.weight"), "ssm_out.weight");
        if (!g.by_key_head && g.values_per_key() > 1)
            out.value_columns = {0, g.key_heads, g.values_per_key(), g.value_dim};
    }

    const ModelConfig& model_;
    const GgufArchitecture& architecture_;
    int layer_ = -1;
    std::vector<GgufPart> parts_;
};

}  // namespace

Result<GgufArchitecture> find_gguf_architecture(std::string_view name) {
    std::string known;
    for (const GgufArchitecture& architecture : gguf_architectures()) {
        if (architecture.name == name) return architecture;
        known += fmt::format("{}{}", known.empty() ? "" : ", ", architecture.name);
    }
    return fail("GGUF architecture {} is not supported (supported: {})", gguf_shown(name), known);
}

Result<const Family*> gguf_family_of(const Json& config) {
    const auto at = config.find("model_type");
    if (at == config.end() || !at->is_string()) return fail("config.json: 'model_type' must be a string");
    std::string known;
    for (const Family* family : families()) {
        if (family->gguf.empty()) continue;
        if (*at == Json(family->model_type)) return family;
        known += fmt::format("{}{}", known.empty() ? "" : ", ", family->model_type);
    }
    return fail("config.json: model_type {} has no GGUF writer ({} have)", show_name(at->get<std::string>()), known);
}

Result<GgufArchitecture> gguf_architecture_of(const Family& family, const ModelConfig& model) {
    const bool experts = std::ranges::any_of(
        model.blocks, [](const BlockConfig& b) { return std::holds_alternative<MoeConfig>(b.mixer); });
    return find_gguf_architecture(experts && !family.gguf_experts.empty() ? family.gguf_experts : family.gguf);
}

std::vector<GgufPart> gguf_parts(const ModelConfig& model, const GgufArchitecture& architecture) {
    return GgufPartList(model, architecture).list();
}

}  // namespace nibble
