// Small models of several families with random weights, made here or from tests/data/golden.
#pragma once

#include "model/made_up_model.h"
#include "model/models.h"

#include <memory>
#include <ostream>
#include <string>

namespace nibble::test {

struct SmallModel {
    std::string name;
    bool golden = false;
    std::optional<KvFormat> kv;
    SsmStateFormat ssm_state = SsmStateFormat::f32;
    bool prediction = false;
};
inline void PrintTo(const SmallModel& m, std::ostream* out) { *out << m.name; }

inline std::vector<SmallModel> small_models() {
    return {{"llama"},
            {"llama_fp8_page", false, KvFormat::fp8_page},
            {"window"},
            {"hybrid"},
            {"hybrid_bf16_states", false, {}, SsmStateFormat::bf16},
            {"qwen3_moe", true},
            {"deepseek_v3", true},
            {"nemotron_h", true},
            {"mixtral", true},
            {.name = "deepseek_predicting", .prediction = true},
            {.name = "nemotron_predicting", .prediction = true},
            {.name = "qwen3_5_predicting", .prediction = true}};
}

// Mamba-2, attention and an MLP, twice.
inline std::shared_ptr<MemoryCheckpoint> hybrid_checkpoint() {
    auto c = std::make_shared<MemoryCheckpoint>(Json{{"architectures", {"NemotronHForCausalLM"}},
                                                     {"model_type", "nemotron_h"},
                                                     {"hybrid_override_pattern", "M*-M*-"},
                                                     {"vocab_size", 64},
                                                     {"hidden_size", 32},
                                                     {"intermediate_size", 48},
                                                     {"num_hidden_layers", 6},
                                                     {"num_attention_heads", 4},
                                                     {"num_key_value_heads", 2},
                                                     {"head_dim", 16},
                                                     {"mamba_num_heads", 4},
                                                     {"mamba_head_dim", 16},
                                                     {"n_groups", 2},
                                                     {"ssm_state_size", 16},
                                                     {"conv_kernel", 4},
                                                     {"chunk_size", 16},
                                                     {"expand", 2},
                                                     {"use_conv_bias", true},
                                                     {"use_bias", false},
                                                     {"mamba_proj_bias", false},
                                                     {"mlp_bias", false},
                                                     {"attention_bias", false},
                                                     {"mlp_hidden_act", "relu2"},
                                                     {"mamba_hidden_act", "silu"},
                                                     {"layer_norm_epsilon", 1e-5},
                                                     {"norm_eps", 1e-5},
                                                     {"time_step_floor", 1e-4},
                                                     {"time_step_min", 1e-3},
                                                     {"time_step_max", 0.1},

                                                     {"residual_in_fp32", false},
                                                     {"sliding_window", nullptr},
                                                     {"tie_word_embeddings", false},
                                                     {"max_position_embeddings", 512}});
    const std::string_view pattern = "M*-M*-";
    c->add("backbone.embeddings.weight", {64, 32}, 1.0f);
    for (size_t i = 0; i < pattern.size(); ++i) {
        const std::string p = fmt::format("backbone.layers.{}.", i), m = p + "mixer.";
        c->add(p + "norm.weight", {32}, 0.1f, 1.0f);
        if (pattern[i] == 'M') {
            c->add(m + "in_proj.weight", {64 + 128 + 4, 32}, 0.2f);
            c->add(m + "conv1d.weight", {128, 1, 4}, 0.3f);
            c->add(m + "conv1d.bias", {128}, 0.1f);
            c->add(m + "A_log", {4}, 0.3f, 0.5f);
            c->add(m + "D", {4}, 0.1f, 1.0f);
            c->add(m + "dt_bias", {4}, 0.2f);
            c->add(m + "norm.weight", {64}, 0.1f, 1.0f);
            c->add(m + "out_proj.weight", {32, 64}, 0.2f);
        } else if (pattern[i] == '*') {
            c->add(m + "q_proj.weight", {64, 32}, 0.2f);
            c->add(m + "k_proj.weight", {32, 32}, 0.2f);
            c->add(m + "v_proj.weight", {32, 32}, 0.2f);
            c->add(m + "o_proj.weight", {32, 64}, 0.2f);
        } else {
            c->add(m + "up_proj.weight", {48, 32}, 0.2f);
            c->add(m + "down_proj.weight", {32, 48}, 0.2f);
        }
    }
    c->add("backbone.norm_f.weight", {32}, 0.1f, 1.0f);
    c->add("lm_head.weight", {64, 32}, 0.2f);
    return c;
}

inline std::shared_ptr<const Checkpoint> small_model_checkpoint(const SmallModel& m) {
    if (m.golden) return open_checkpoint(test_data("golden/models") / m.name);
    if (m.name.starts_with("hybrid")) return hybrid_checkpoint();
    if (m.prediction) return agreeing_model(predicting(m.name), 0.15f);
    Json config = small_llama();
    config["max_position_embeddings"] = 512;
    if (m.name == "window") {
        config["model_type"] = "mistral";
        config["sliding_window"] = 70;
    }
    return small_checkpoint(config);
}

// Returns null if golden data are missing. The pool must outlive the model.
inline std::shared_ptr<const LanguageModel> load_small(const SmallModel& m, ThreadPool& pool) {
    auto checkpoint = small_model_checkpoint(m);
    if (!checkpoint) return nullptr;
    ModelOptions options;
    options.kv = m.kv;
    options.ssm_state = m.ssm_state;
    options.prediction = m.prediction;
    auto model = Model::load(std::move(checkpoint), options, pool);
    EXPECT_TRUE(model.ok()) << (model.ok() ? "" : model.error().message());
    if (!model.ok()) return nullptr;
    return std::make_shared<const Model>(*std::move(model));
}

}  // namespace nibble::test
