// Creates base models for adapters: checkpoints on disk in their serving format.
#pragma once

#include "architecture/model_config.h"
#include "checkpoint/convert.h"
#include "cuda/models/prefer_experts.h"
#include "cuda/models/train_recipes.h"
#include "train/small_trainer.h"
#include "train/train_shapes.h"
#include "train/trained_codes.h"

#include <unistd.h>

#include <filesystem>
#include <random>
#include <string>

namespace nibble::test {

// The stored format of a base: the codes of a training recipe. `rounds`: inputs are rounded too.
struct LoraBase {
    const char* name;
    const char* recipe;
    const char* family = "llama";
    bool rounds = false;
};
inline void PrintTo(const LoraBase& b, std::ostream* out) { *out << b.name; }

inline Json lora_model(const std::string& family) {
    Json config = recipe_model();
    if (family == "llama") return config;
    config.erase("architectures");
    config["model_type"] = family;
    if (family == "qwen2") config["tie_word_embeddings"] = true;  // q, k and v also have biases
    if (family == "gemma3_text") {
        config.erase("hidden_act"), config.erase("rope_theta");
        config.update({{"hidden_activation", "gelu_pytorch_tanh"},
                       {"query_pre_attn_scalar", 64},
                       {"sliding_window", 8},
                       {"sliding_window_pattern", 2},
                       {"tie_word_embeddings", true}});
    }
    if (family == "mixtral") config.update({{"num_local_experts", 8}, {"num_experts_per_tok", 2}});
    if (family == "qwen3_moe")
        config.update({{"num_experts", 16},
                       {"num_experts_per_tok", 4},
                       {"moe_intermediate_size", 144},  // not a multiple of 64 rows
                       {"norm_topk_prob", true},
                       {"decoder_sparse_step", 1},
                       {"mlp_only_layers", Json::array()}});
    if (family == "deepseek_v3") {
        config.erase("head_dim");
        config.update({{"num_key_value_heads", 4},
                       {"q_lora_rank", 96},
                       {"kv_lora_rank", 64},
                       {"qk_nope_head_dim", 128},
                       {"qk_rope_head_dim", 64},
                       {"v_head_dim", 128},
                       {"n_routed_experts", 8},
                       {"n_shared_experts", 1},
                       {"num_experts_per_tok", 3},
                       {"moe_intermediate_size", 128},
                       {"n_group", 1},
                       {"topk_group", 1},
                       {"norm_topk_prob", true},
                       {"routed_scaling_factor", 2.5},
                       {"first_k_dense_replace", 1}});
    }
    if (family == "nemotron_h") {
        for (const char* key : {"rms_norm_eps", "hidden_act", "rope_theta"}) config.erase(key);
        config.update({{"hybrid_override_pattern", "M*E-"},
                       {"num_hidden_layers", 4},
                       {"layer_norm_epsilon", 1e-5},
                       {"mlp_hidden_act", "relu2"},
                       {"n_routed_experts", 16},
                       {"n_shared_experts", 1},
                       {"num_experts_per_tok", 3},
                       {"moe_intermediate_size", 128},
                       {"moe_shared_expert_intermediate_size", 320},
                       {"n_group", 1},
                       {"topk_group", 1},
                       {"norm_topk_prob", true},
                       {"routed_scaling_factor", 2.5},
                       {"mamba_num_heads", 16},
                       {"mamba_head_dim", 64},
                       {"n_groups", 2},
                       {"ssm_state_size", 128},
                       {"conv_kernel", 4}});
    }
    return config;
}

struct LoraFolder {
    std::filesystem::path path;
    explicit LoraFolder(const std::string& name)
        : path(std::filesystem::path(testing::TempDir()) / fmt::format("nibble-lora-{}-{}", name, ::getpid())) {
        std::filesystem::remove_all(path);
        std::filesystem::create_directories(path);
    }
    ~LoraFolder() { std::filesystem::remove_all(path); }
};

// moved: changes the embedding by half a unit in the last place; codes of linears stay the same.
inline std::shared_ptr<const Checkpoint> stored_base(const LoraBase& b, const std::filesystem::path& out, bool moved,
                                                     ThreadPool& pool) {
    auto parameters = random_start(lora_model(b.family), DType::bf16, 7, pool);
    EXPECT_TRUE(parameters.ok()) << parameters.error().message();
    if (!parameters.ok()) return nullptr;
    std::mt19937 random(11);
    std::uniform_real_distribution<float> some(-0.2f, 0.2f);
    for (size_t id = 0; id < (*parameters)->count(); ++id)
        if (!(*parameters)->matrix(id))
            for (float& x : (*parameters)->master(id)) x += some(random);  // makes biases and norms nontrivial
    // Sharper logits than a random start, so that training can improve them.
    const auto head = (*parameters)->id("lm_head.weight");
    if (head.ok())
        for (float& x : (*parameters)->master(*head)) x *= 4;
    prefer_experts(**parameters);
    const auto config = model_config(**parameters);
    EXPECT_TRUE(config.ok()) << config.error().message();
    const auto embedding = (*parameters)->id(config->embedding);
    uint64_t at = 0;
    for (float& v : (*parameters)->master(*embedding))
        if (moved) v *= 1 + (PhiloxStream{1, 4}.block(at++).word[0] & 1 ? 0x1p-9f : -0x1p-9f);
    (*parameters)->publish(pool);
    std::shared_ptr<const Checkpoint> from = *parameters;
    Dialect to = Dialect::plain;
    if (std::string(b.recipe) != "bf16") {
        auto trainer = Trainer::create(*parameters, {.precision = named(b.recipe)}, pool);
        EXPECT_TRUE(trainer.ok()) << trainer.error().message();
        auto codes = (*trainer)->trained_codes(1);
        EXPECT_TRUE(codes.ok()) << codes.error().message();
        to = (*codes)->target();
        from = *std::move(codes);
    }
    const auto report = convert(*from, {.to = to, .out = out}, pool, {});
    EXPECT_TRUE(report.ok()) << report.error().message();
    auto read = Checkpoint::open(out);
    EXPECT_TRUE(read.ok()) << read.error().message();
    return read.ok() ? *std::move(read) : nullptr;
}

inline TrainerOptions lora_of(std::vector<std::string> targets = {}) {
    TrainerOptions options{.lora = {.rank = 8, .alpha = 20, .targets = std::move(targets)}};
    options.optimizer.weight_decay = 0;
    return options;
}

}  // namespace nibble::test
