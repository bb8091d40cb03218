// Small models and an RL loop on one GPU, for tests.
#pragma once

#include "rl/policy_trainer.h"
#include "rl/token_task.h"
#include "train/device/device_trainer.h"
#include "train/small_trainer.h"
#include "train/train_shapes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>

namespace nibble::test {

inline DeviceChoice rl_device() {
    const char* name = std::getenv("NIBBLE_DEVICE");
    const auto choice = parse_device(name ? name : "cuda");
    return choice.ok() && choice->cuda ? *choice : DeviceChoice{.cuda = true};
}

inline Json rl_llama() {
    return {{"architectures", {"LlamaForCausalLM"}},
            {"model_type", "llama"},
            {"hidden_size", 256},
            {"num_hidden_layers", 2},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 2},
            {"head_dim", 64},
            {"intermediate_size", 384},
            {"vocab_size", 1000},
            {"rms_norm_eps", 1e-5},
            {"rope_theta", 10000.0},
            {"tie_word_embeddings", false},
            {"max_position_embeddings", 8192},
            {"hidden_act", "silu"}};
}

inline Json rl_mixture() {
    Json config = rl_llama();
    config.erase("architectures");
    config.update({{"model_type", "qwen3_moe"},
                   {"num_experts", 16},
                   {"num_experts_per_tok", 4},
                   {"moe_intermediate_size", 144},
                   {"norm_topk_prob", true}});
    return config;
}

inline Json rl_hybrid() {
    Json config = rl_llama();
    for (const char* key : {"architectures", "rms_norm_eps", "hidden_act", "rope_theta"}) config.erase(key);
    config.update({{"model_type", "nemotron_h"},
                   {"hybrid_override_pattern", "M*EM"},
                   {"num_hidden_layers", 4},
                   {"layer_norm_epsilon", 1e-5},
                   {"mlp_hidden_act", "relu2"},
                   {"n_routed_experts", 16},
                   {"n_shared_experts", 1},
                   {"num_experts_per_tok", 3},
                   {"moe_intermediate_size", 128},
                   {"moe_shared_expert_intermediate_size", 320},
                   {"mamba_num_heads", 16},
                   {"mamba_head_dim", 64},
                   {"n_groups", 2},
                   {"ssm_state_size", 128},
                   {"conv_kernel", 4}});
    return config;
}

inline RlConfig gpu_config() {
    RlConfig c{.prompts = 8, .generations = 8, .steps = 30, .length = 128};
    c.optimizer.learning_rate = 3e-3;
    c.optimizer.weight_decay = 0;
    c.loss.kl_penalty = 0;
    c.generation.most_tokens = 75;  // more than a page of 64 positions
    return c;
}

struct GpuRun {
    std::vector<RlStep> steps;
    std::vector<float> masters, scales;
};

// Options of a run in addition to its config. The trainer uses `sampling`; absent: the config's.
struct GpuWay {
    Json model = rl_llama();
    TrainPrecision precision;
    std::optional<SamplingParams> sampling;
    std::function<void(DeviceTrainer&, int)> before_step;
};

inline GpuRun run_on_gpu(const RlConfig& config, int count, int64_t row_tokens, const GpuWay& way = {}) {
    ThreadPool pool;
    GpuRun run;
    auto parameters = random_start(way.model, DType::bf16, 7, pool);
    EXPECT_TRUE(parameters.ok()) << parameters.error().message();
    const int64_t answers = config.prompts * config.generations;
    const auto trainer =
        DeviceTrainer::create(*parameters,
                              {.train = {.precision = way.precision,
                                         .optimizer = config.optimizer,
                                         .sampling = way.sampling.value_or(config.generation.sampling()),
                                         .cache = config.generation.cache},
                               .device = rl_device(),
                               .rows = most_rollout_rows(answers, config.length, row_tokens),
                               .seq = std::max(row_tokens, config.length),
                               .micro_batch = 1,
                               .reference = config.loss.kl_penalty > 0,
                               .generation = config.generation.precision},
                              pool);
    EXPECT_TRUE(trainer.ok()) << trainer.error().message();
    if (!trainer.ok()) return run;
    TokenTask task(share_of_even_tokens);
    PolicyTrainerOptions options{.end_tokens = {3}, .memory_share = 0.2, .row_tokens = row_tokens};
    if (config.loss.kl_penalty > 0) options.reference = std::make_shared<DeviceReference>(**trainer);
    if (config.generation.precision) {
        const auto generator = (*trainer)->generating();
        EXPECT_TRUE(generator.ok()) << generator.error().message();
        if (!generator.ok()) return run;
        options.generator = *generator;
        options.renew_generator = [&] { return (*trainer)->renew_generation(); };
    }
    const auto policy = PolicyTrainer::create(config, **trainer, task, std::move(options));
    EXPECT_TRUE(policy.ok()) << policy.error().message();
    if (!policy.ok()) return run;
    for (int s = 0; s < count; ++s) {
        if (way.before_step) way.before_step(**trainer, s);
        auto step = (*policy)->step(s);
        EXPECT_TRUE(step.ok()) << step.error().message();
        if (!step.ok()) break;
        run.steps.push_back(*std::move(step));
    }
    const auto state = (*trainer)->state();
    EXPECT_TRUE(state.ok());
    for (const auto& values : state->masters) run.masters.insert(run.masters.end(), values.begin(), values.end());
    if ((*trainer)->cache_scales()) run.scales = (*trainer)->cache_scales()->state();
    return run;
}

}  // namespace nibble::test
