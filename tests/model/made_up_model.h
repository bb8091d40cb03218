// A checkpoint in memory with random weights for any config that the engine reads: every tensor of the config's blocks,
// including prediction layers.
#pragma once

#include "architecture/model_config.h"
#include "model/memory_checkpoint.h"

#include <gtest/gtest.h>
#include <memory>
#include <stdexcept>

namespace nibble::test {

// Calls add(name, shape) once for every tensor, in order.
class ModelTensors {
public:
    using Add = std::function<void(const std::string& name, std::vector<int64_t> shape)>;
    ModelTensors(const ModelConfig& model, Add add) : hidden_(model.hidden), add_(std::move(add)) {
        add_(model.embedding, {model.vocab, hidden_});
        for (const BlockConfig& block : model.blocks) this->block(block);
        add_(model.norm, {hidden_});
        if (model.head != model.embedding) add_(model.head, {model.vocab, hidden_});
        if (!model.prediction) return;
        const PredictionConfig& p = *model.prediction;
        add_(p.projection + ".weight", {hidden_, 2 * hidden_});
        for (const std::string& norm : {p.embedding_norm, p.hidden_norm, p.norm}) add_(norm, {hidden_});
        for (const BlockConfig& block : p.blocks) this->block(block);
    }

private:
    void block(const BlockConfig& block) {
        add_(block.norm, {hidden_});
        std::visit([&](const auto& mixer) { this->mixer(block.prefix, mixer); }, block.mixer);
    }
    void mixer(const std::string& p, const AttentionConfig& a) {
        add_(p + ".q_proj.weight", {a.q_rows(), hidden_});
        add_(p + ".k_proj.weight", {a.kv_heads * a.head_dim, hidden_});
        add_(p + ".v_proj.weight", {a.kv_heads * a.head_dim, hidden_});
        add_(p + ".o_proj.weight", {hidden_, a.heads * a.head_dim});
        if (a.qk_norm == QkNorm::none) return;
        for (const char* norm : {".q_norm.weight", ".k_norm.weight"}) add_(p + norm, {a.head_dim});
    }
    void mixer(const std::string& p, const LatentAttentionConfig& a) {
        const int64_t k_dim = a.nope_dim + a.rope.dims;
        add_(p + ".q_a_proj.weight", {a.q_rank, hidden_});
        add_(p + ".q_a_layernorm.weight", {a.q_rank});
        add_(p + ".q_b_proj.weight", {a.heads * k_dim, a.q_rank});
        add_(p + ".kv_a_proj_with_mqa.weight", {a.kv_rank + a.rope.dims, hidden_});
        add_(p + ".kv_a_layernorm.weight", {a.kv_rank});
        add_(p + ".kv_b_proj.weight", {int64_t{a.heads} * (a.nope_dim + a.v_dim), a.kv_rank});
        add_(p + ".o_proj.weight", {hidden_, int64_t{a.heads} * a.v_dim});
        if (!a.indexer) return;
        const IndexerConfig& i = *a.indexer;
        add_(p + ".indexer.wq_b.weight", {int64_t{i.heads} * i.dim, a.q_rank});
        add_(p + ".indexer.wk.weight", {i.dim, hidden_});
        add_(p + ".indexer.k_norm.weight", {i.dim});
        add_(p + ".indexer.k_norm.bias", {i.dim});
        add_(p + ".indexer.weights_proj.weight", {i.heads, hidden_});
    }
    void mixer(const std::string& p, const MlpConfig& m) { mlp(p, m, hidden_); }
    void mlp(const std::string& p, const MlpConfig& m, int64_t width) {
        if (m.gated) add_(p + "." + m.gate_proj + ".weight", {m.intermediate, width});
        add_(p + "." + m.up_proj + ".weight", {m.intermediate, width});
        add_(p + "." + m.down_proj + ".weight", {width, m.intermediate});
    }
    void mixer(const std::string& p, const MoeConfig& m) {
        const int64_t width = m.latent > 0 ? m.latent : hidden_;
        add_(p + ".gate.weight", {m.experts, hidden_});
        if (m.selection_bias) add_(p + ".gate.e_score_correction_bias", {m.experts});
        if (m.latent > 0) {
            add_(p + ".fc1_latent_proj.weight", {m.latent, hidden_});
            add_(p + ".fc2_latent_proj.weight", {hidden_, m.latent});
        }
        for (int e = 0; e < m.experts; ++e) mlp(fmt::format("{}.experts.{}", p, e), m.expert, width);
        if (m.shared.intermediate > 0) mlp(p + "." + m.shared_name, m.shared, hidden_);
        if (m.shared_gate) add_(p + "." + m.shared_gate_name + ".weight", {1, hidden_});
    }
    void mixer(const std::string& p, const ShortConvConfig&) { ADD_FAILURE() << p; }
    void mixer(const std::string& p, const PerLayerInputConfig&) { ADD_FAILURE() << p; }
    void mixer(const std::string& p, const ParallelConfig&) { ADD_FAILURE() << p; }
    void mixer(const std::string& p, const CompressedAttentionConfig&) { ADD_FAILURE() << p; }
    void mixer(const std::string& p, const MambaConfig& m) {
        const int64_t inner = int64_t{m.heads} * m.head_dim, channels = inner + 2 * int64_t{m.groups} * m.state;
        add_(p + ".in_proj.weight", {inner + channels + m.heads, hidden_});
        add_(p + ".conv1d.weight", {channels, 1, m.conv});
        add_(p + ".conv1d.bias", {channels});
        for (const char* name : {".A_log", ".D", ".dt_bias"}) add_(p + name, {m.heads});
        add_(p + ".norm.weight", {inner});
        add_(p + ".out_proj.weight", {hidden_, inner});
    }
    void mixer(const std::string& p, const GatedDeltaConfig& g) {
        add_(p + ".in_proj_qkv.weight", {g.channels(), hidden_});
        add_(p + ".in_proj_z.weight", {g.inner(), hidden_});
        for (const char* name : {".in_proj_b.weight", ".in_proj_a.weight"}) add_(p + name, {g.value_heads, hidden_});
        add_(p + ".conv1d.weight", {g.channels(), 1, g.conv});
        for (const char* name : {".A_log", ".dt_bias"}) add_(p + name, {g.value_heads});
        add_(p + ".norm.weight", {g.value_dim});
        add_(p + ".out_proj.weight", {hidden_, g.inner()});
    }

    int64_t hidden_;
    Add add_;
};

// Returns weights with which every part of the model affects the output.
inline std::shared_ptr<MemoryCheckpoint> made_up_model(const Json& config) {
    const auto model = model_config(config);
    if (!model.ok()) throw std::runtime_error(model.error().message());
    auto checkpoint = std::make_shared<MemoryCheckpoint>(config);
    ModelTensors(*model, [&](const std::string& name, std::vector<int64_t> shape) {
        const bool vector = shape.size() == 1 && !name.ends_with("bias");
        const bool wide = name == model->embedding;
        const float deviation = vector              ? 0.1f
                                : wide              ? 1.0f
                                : shape.size() == 1 ? 0.2f
                                                    : 1.2f / std::sqrt(float(shape.back()));
        checkpoint->add(name, std::move(shape), deviation, vector ? 1.0f : 0.0f);
    });
    return checkpoint;
}

// Like made_up_model(), but blocks add only `say` times their output to the residual stream, and prediction layers only
// use the token's embedding. The next token, and the drafted one, is then nearly a function of the current token; for 0
// it is the same function.
inline std::shared_ptr<MemoryCheckpoint> agreeing_model(const Json& config, float say) {
    auto checkpoint = made_up_model(config);
    const auto model = model_config(config);
    const int64_t n = model->hidden;
    for (const CheckpointTensor& t : checkpoint->tensors())
        for (const char* last : {"o_proj.weight", "down_proj.weight", "out_proj.weight", "fc2_latent_proj.weight"})
            if (t.name.ends_with(last)) checkpoint->scale(t.name, say);
    checkpoint->scale(model->head, 4.0f);
    for (size_t i = 0; i < size_t(n * 2 * n); ++i)
        checkpoint->set(model->prediction->projection + ".weight", i,
                        i % size_t(2 * n) == i / size_t(2 * n) ? 1.0f : 0.0f);
    for (const std::string& norm : {model->norm, model->prediction->norm, model->prediction->embedding_norm})
        for (size_t i = 0; i < size_t(n); ++i) checkpoint->set(norm, i, 1.0f);
    return checkpoint;
}

// Small models of both families with one prediction module. Their widths are supported by GPU kernels, too.
inline Json predicting_deepseek() {
    return {{"model_type", "deepseek_v3"},
            {"vocab_size", 256},
            {"hidden_size", 128},
            {"intermediate_size", 192},
            {"num_hidden_layers", 2},
            {"num_nextn_predict_layers", 1},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 4},
            {"q_lora_rank", 96},
            {"kv_lora_rank", 64},
            {"qk_nope_head_dim", 32},
            {"qk_rope_head_dim", 16},
            {"v_head_dim", 32},
            {"first_k_dense_replace", 1},
            {"n_routed_experts", 8},
            {"n_shared_experts", 1},
            {"num_experts_per_tok", 2},
            {"moe_intermediate_size", 64},
            {"n_group", 4},
            {"topk_group", 2},
            {"norm_topk_prob", true},
            {"routed_scaling_factor", 2.5},
            {"hidden_act", "silu"},
            {"rms_norm_eps", 1e-6},
            {"rope_theta", 10000.0},
            {"max_position_embeddings", 512},
            {"tie_word_embeddings", false}};
}

inline Json predicting_nemotron() {
    return {{"model_type", "nemotron_h"},
            {"hybrid_override_pattern", "M*E-"},
            {"mtp_hybrid_override_pattern", "*E"},
            {"num_hidden_layers", 4},
            {"num_nextn_predict_layers", 1},
            {"vocab_size", 256},
            {"hidden_size", 128},
            {"intermediate_size", 192},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 2},
            {"head_dim", 32},
            {"mamba_num_heads", 8},
            {"mamba_head_dim", 16},
            {"n_groups", 2},
            {"ssm_state_size", 32},
            {"conv_kernel", 4},
            {"n_routed_experts", 8},
            {"num_experts_per_tok", 2},
            {"n_shared_experts", 1},
            {"moe_intermediate_size", 64},
            {"moe_latent_size", 64},
            {"moe_shared_expert_intermediate_size", 128},
            {"norm_topk_prob", true},
            {"routed_scaling_factor", 2.5},
            {"mlp_hidden_act", "relu2"},
            {"mamba_hidden_act", "silu"},
            {"layer_norm_epsilon", 1e-5},
            {"max_position_embeddings", 512},
            {"tie_word_embeddings", false}};
}

inline Json predicting_qwen3_5() {
    return {{"model_type", "qwen3_5_moe_text"},
            {"layer_types", {"linear_attention", "full_attention", "linear_attention"}},
            {"num_hidden_layers", 3},
            {"mtp_num_hidden_layers", 1},
            {"vocab_size", 256},
            {"hidden_size", 128},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 2},
            {"head_dim", 32},
            {"linear_num_key_heads", 2},
            {"linear_num_value_heads", 4},
            {"linear_key_head_dim", 16},
            {"linear_value_head_dim", 32},
            {"num_experts", 8},
            {"num_experts_per_tok", 2},
            {"moe_intermediate_size", 64},
            {"shared_expert_intermediate_size", 64},
            {"max_position_embeddings", 512}};
}

// Sparse attention from the 25th token on, in the layer for prediction too.
inline Json predicting_deepseek_v32() {
    Json config = predicting_deepseek();
    config["model_type"] = "deepseek_v32";
    config.update({{"index_topk", 24}, {"index_n_heads", 4}, {"index_head_dim", 32}});
    return config;
}

// By the first letters of the family's name.
inline Json predicting(std::string_view family) {
    if (family == "deepseek_v32") return predicting_deepseek_v32();
    if (family.starts_with("nemotron")) return predicting_nemotron();
    return family.starts_with("qwen3_5") ? predicting_qwen3_5() : predicting_deepseek();
}

}  // namespace nibble::test
