#include "rl/nemo_config.h"

#include "rl/rl_config.h"
#include "support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace nibble::test {
namespace {

// The parts of a base recipe that all others inherit.
constexpr std::string_view math_1b = R"(
grpo: {num_prompts_per_step: 32, num_generations_per_prompt: 16, max_rollout_turns: 1, max_num_epochs: 1,
  max_num_steps: 1000000, normalize_rewards: true, use_leave_one_out_baseline: true, val_period: 10, seed: 42,
  val_at_start: false, overlong_filtering: false, max_val_samples: 256, val_batch_size: 256,
  async_grpo: {enabled: false, max_trajectory_age_steps: 1}}
loss_fn: {reference_policy_kl_penalty: 0.01, ratio_clip_min: 0.2, ratio_clip_max: 0.28, ratio_clip_c: null,
  use_importance_sampling_correction: false, token_level_loss: true}
checkpointing: {enabled: true, checkpoint_dir: "results/grpo", metric_name: val_reward, keep_top_k: 3, save_period: 10}
policy:
  model_name: "Qwen/Qwen2.5-1.5B"
  train_global_batch_size: 512
  train_micro_batch_size: 4
  max_total_sequence_length: 512
  precision: bfloat16
  dtensor_cfg: {enabled: true, tensor_parallel_size: 1}
  megatron_cfg:
    enabled: false
    optimizer: {lr: 5.0e-6, weight_decay: 0.01, adam_beta1: 0.9, adam_beta2: 0.999, clip_grad: "${policy.max_grad_norm}"}
    scheduler: {lr_warmup_iters: 13}
  sequence_packing:
    enabled: true
    train_mb_tokens: ${mul:${policy.max_total_sequence_length}, ${policy.train_micro_batch_size}}
  max_grad_norm: 1.0
  optimizer: {name: torch.optim.AdamW, kwargs: {lr: 4.0e-6, weight_decay: 0.02, betas: [0.8, 0.99], eps: 1e-8}}
  generation:
    backend: vllm
    max_new_tokens: ${policy.max_total_sequence_length}
    temperature: 1.0
    top_p: 1.0
    top_k: null
    vllm_cfg: {precision: "${policy.precision}", gpu_memory_utilization: 0.6, num_first_layers_in_bf16: 0}
data: {dataset_name: OpenMathInstruct-2, prompt_file: examples/prompts/cot.txt}
env: {math: {num_workers: 8}}
cluster: {gpus_per_node: 1, num_nodes: 1}
)";

struct Translated {
    RlConfig config;
    NemoTranslation text;
    // Returns true if the line of a key gives this reason.
    bool says(std::string_view key, std::string_view why) const {
        return std::ranges::any_of(text.dropped, [&](const std::string& line) {
            for (size_t at = line.find(key); at != line.npos; at = line.find(key, at + 1))
                if (at > 0 && line[at - 1] == ' ' && at + key.size() < line.size() &&
                    std::string_view(" ,:").find(line[at + key.size()]) != std::string_view::npos)
                    return line.find(why) != line.npos;
            return false;
        });
    }
    bool lists(std::string_view key) const { return says(key, ""); }
};

Translated translated(const TempDir& dir, std::string_view recipe) {
    write_file(dir / "grpo_math_1B.yaml", math_1b);
    write_file(dir / "recipe.yaml", recipe);
    auto text = translate_nemo_recipe(dir / "recipe.yaml");
    EXPECT_TRUE(text.ok()) << text.error().message();
    if (!text.ok()) return {};
    auto config = parse_rl_config(text->yaml, "translated");
    EXPECT_TRUE(config.ok()) << config.error().message() << text->yaml;
    return {config.ok() ? *config : RlConfig{}, *text};
}

// Model Optimizer's recipes, by name and by NeMo RL's files, for policy and generation or one of them.
TEST(NemoConfig, QuantizedRecipesKeepTheirPrecision) {
    struct Case {
        const char *policy, *generation;
        bool weights_only, stored_inputs, mlp;
        std::optional<TrainRecipe> rollouts;  // if rollouts have another precision than the updates
    };
    const Case cases[] = {
        {"quant_cfg: NVFP4_DEFAULT_CFG", "quant_cfg: NVFP4_DEFAULT_CFG", false, true, false, {}},
        {"quant_cfg: NVFP4_DEFAULT_CFG", "real_quant: true", false, true, false, {}},
        {"quant_cfg: W4A16_NVFP4_CFG", "real_quant: true", true, false, false, {}},
        {"quant_cfg: NVFP4_MLP_WEIGHT_ONLY_CFG", "quant_cfg: NVFP4_MLP_WEIGHT_ONLY_CFG", true, false, true, {}},
        {"quant_cfg: examples/modelopt/quant_configs/nvfp4_a16.yaml",
         "quant_cfg: examples/modelopt/quant_configs/nvfp4_a16.yaml",
         true,
         false,
         false,
         {}},
        {"quant_cfg: /absolute/nvfp4_a16_mlp_only.yaml", "real_quant: true", true, false, true, {}},
        {"quant_cfg: examples/modelopt/quant_configs/nvfp4_experts.yaml", "real_quant: true", false, true, true, {}},
        {"quant_cfg: examples/modelopt/quant_configs/nano3_nvfp4_weightonly.yaml",
         "real_quant: true",
         true,
         false,
         true,
         {}},
        {"quant_cfg: NVFP4_DEFAULT_CFG", "real_quant: false", false, true, false, TrainRecipe::bf16},
        {"train_micro_batch_size: 4", "quant_cfg: W4A16_NVFP4_CFG", false, false, false, TrainRecipe::nvfp4},
    };
    for (const Case& c : cases) {
        TempDir dir;
        const Translated t = translated(
            dir, fmt::format("defaults: grpo_math_1B.yaml\npolicy:\n  {}\n  quant_calib_size: 512\n  generation:\n    "
                             "{}\n",
                             c.policy, c.generation));
        const TrainPrecision& p = t.config.precision;
        EXPECT_EQ(p.recipe, c.weights_only || c.stored_inputs ? TrainRecipe::nvfp4 : TrainRecipe::bf16) << c.policy;
        EXPECT_EQ(p.weights_only, c.weights_only) << c.policy;
        EXPECT_EQ(p.stored_inputs, c.stored_inputs) << c.policy;
        EXPECT_EQ(p.scope == TrainScope::mlp, c.mlp) << c.policy;
        ASSERT_EQ(t.config.generation.precision.has_value(), c.rollouts.has_value()) << c.policy << c.generation;
        if (c.rollouts) {
            EXPECT_EQ(t.config.generation.precision->recipe, *c.rollouts);
        }
        for (const char* mapped : {"policy.quant_cfg", "policy.generation.quant_cfg", "policy.generation.real_quant"})
            EXPECT_FALSE(t.lists(mapped)) << c.policy << " " << mapped;
        EXPECT_TRUE(t.says("policy.quant_calib_size", "the run's own first prompts"));
    }
    TempDir dir;
    const Translated other =
        translated(dir, "defaults: grpo_math_1B.yaml\npolicy: {quant_cfg: INT8_SMOOTHQUANT_CFG}\n");
    EXPECT_TRUE(other.says("policy.quant_cfg", "not a supported NVFP4 recipe"));
    EXPECT_EQ(other.config.precision.recipe, TrainRecipe::bf16);
}

TEST(NemoConfig, ALinearWarmUpIsKept) {
    TempDir dir;
    const Translated t = translated(dir, R"(
defaults: grpo_math_1B.yaml
policy:
  scheduler:
    - {name: torch.optim.lr_scheduler.LinearLR, kwargs: {start_factor: 0.1, end_factor: 1.0, total_iters: 50}}
    - {name: torch.optim.lr_scheduler.ConstantLR, kwargs: {factor: 1.0, total_iters: 10000000000}}
    - {milestones: [50]}
)");
    EXPECT_EQ(t.config.warmup, 50);
    EXPECT_FALSE(t.lists("policy.scheduler"));
    EXPECT_TRUE(std::ranges::any_of(t.text.defaults, [](const std::string& line) {
        return line.find("lr_warmup_iters: LinearLR rises from 0.1") != line.npos;
    }));
    const Translated decays = translated(dir, R"(
defaults: grpo_math_1B.yaml
policy: {scheduler: [{name: torch.optim.lr_scheduler.CosineAnnealingLR, kwargs: {T_max: 100}}]}
)");
    EXPECT_EQ(decays.config.warmup, 0);
    EXPECT_TRUE(decays.lists("policy.scheduler"));
}

TEST(NemoConfig, FilesOfJsonLinesAreDataHere) {
    TempDir dir;
    const auto recipe = [](std::string_view data) {
        return fmt::format("policy: {{model_name: M}}\ngrpo: {{val_period: 5}}\ndata:\n{}", data);
    };
    const Translated t =
        translated(dir, recipe("  train: {data_path: a/train.jsonl, input_key: question, split: train}\n"
                               "  validation: {data_path: a/val.jsonl}\n"
                               "  default: {dataset_name: ResponseDataset, output_key: answer}\n"));
    EXPECT_EQ(t.config.task.train, "a/train.jsonl");
    EXPECT_EQ(t.config.task.validation, "a/val.jsonl");
    EXPECT_EQ(t.config.task.input_key, "question");
    EXPECT_EQ(t.config.task.output_key, "answer");
    EXPECT_EQ(t.config.validation_every, 5);
    EXPECT_FALSE(t.lists("data.train.data_path"));
    EXPECT_FALSE(t.lists("data.default.output_key"));
    EXPECT_TRUE(t.lists("data.train.split"));
    // Without validation rows validation is off; a Hub repository is not a file.
    const Translated other = translated(dir, recipe("  train: {data_path: a/train.jsonl}\n"
                                                    "  validation: {data_path: b.jsonl, input_key: q}\n"));
    EXPECT_EQ(other.config.task.train, "a/train.jsonl");
    EXPECT_TRUE(other.config.task.validation.empty());
    EXPECT_TRUE(other.says("data.validation.data_path", "same keys"));
    EXPECT_TRUE(other.says("grpo.val_period", "data.validation is missing"));
    const Translated hub = translated(dir, recipe("  train: {data_path: openai/gsm8k}\n"));
    EXPECT_TRUE(hub.config.task.train.empty());
    EXPECT_TRUE(hub.says("data.train.data_path", "stand-in"));
}

TEST(NemoConfig, Math1B) {
    TempDir dir;
    const Translated t = translated(dir, math_1b);
    const RlConfig& c = t.config;
    EXPECT_EQ(c.model, "Qwen/Qwen2.5-1.5B");
    EXPECT_EQ(c.output, "results/grpo");
    EXPECT_EQ(c.train_batch, 512);
    EXPECT_EQ(c.length, 512);
    EXPECT_EQ(c.generation.most_tokens, 0);  // limited by the length
    EXPECT_EQ(c.loss.ratio_clip_max, 0.28);
    EXPECT_EQ(c.optimizer.learning_rate, 4e-6);
    EXPECT_EQ(c.optimizer.weight_decay, 0.02);
    EXPECT_EQ(c.optimizer.beta1, 0.8);
    EXPECT_EQ(c.optimizer.beta2, 0.99);
    EXPECT_EQ(c.optimizer.epsilon, 1e-8);
    EXPECT_EQ(c.validation_every, 10);
    EXPECT_EQ(c.saving.every, 10);
    EXPECT_EQ(c.saving.keep, 3);
    EXPECT_TRUE(t.says("data.dataset_name", "stand-in"));
    EXPECT_TRUE(t.says("env.math.num_workers", "env.command"));
    EXPECT_TRUE(t.says("cluster.num_nodes", "processes"));
    EXPECT_TRUE(t.lists("grpo.max_num_epochs"));
    EXPECT_TRUE(t.lists("checkpointing.metric_name"));
    EXPECT_FALSE(t.lists("grpo.async_grpo.enabled"));
    EXPECT_FALSE(t.lists("policy.generation.vllm_cfg.precision"));
    EXPECT_FALSE(t.lists("grpo.seed"));
}

// FP8 rollouts with an FP8 cache and updates in BF16; unsupported features are reported.
TEST(NemoConfig, Fp8CacheOfMegatron) {
    TempDir dir;
    const Translated t = translated(dir, R"(
defaults: grpo_math_1B.yaml
loss_fn: {use_importance_sampling_correction: true, truncated_importance_sampling_type: tis,
  truncated_importance_sampling_ratio: 2}
grpo: {val_at_start: true, max_rollout_turns: 3, async_grpo: {enabled: true, max_trajectory_age_steps: 2,
  in_flight_weight_updates: true, recompute_kv_cache_after_weight_updates: true}}
checkpointing: {enabled: false, checkpoint_must_save_by: "00:03:45:00"}
policy:
  model_name: Qwen/Qwen3-8B-Base
  max_total_sequence_length: 8192
  optimizer: null
  megatron_cfg:
    enabled: true
    optimizer: {lr: 1.0e-06, weight_decay: 0.1}
    scheduler: {lr_warmup_iters: 10, lr_warmup_init: 1.0e-07}
  generation:
    temperature: 0.7
    vllm_cfg: {precision: fp8, kv_cache_dtype: fp8, use_deep_gemm: true, num_first_layers_in_bf16: 1}
)");
    EXPECT_EQ(t.config.precision.recipe, TrainRecipe::bf16);
    EXPECT_EQ(t.config.length, 8192);
    EXPECT_EQ(t.config.warmup, 10);
    EXPECT_EQ(t.config.optimizer.learning_rate, 1e-6);
    EXPECT_EQ(t.config.optimizer.weight_decay, 0.1);
    EXPECT_EQ(t.config.optimizer.clip, 1);  // from ${policy.max_grad_norm}
    EXPECT_EQ(t.config.loss.truncation, ImportanceTruncation::tis);
    EXPECT_EQ(t.config.loss.importance_high, 2);
    EXPECT_EQ(t.config.loss.ratio_clip_max, 0.28);  // from the base file
    EXPECT_EQ(t.config.saving.every, 0);
    EXPECT_EQ(t.config.saving.keep, 0);
    EXPECT_EQ(t.config.must_save_by, 0);  // a run that saves nothing has no time limit for saving
    ASSERT_TRUE(t.config.generation.precision);
    EXPECT_EQ(t.config.generation.precision->recipe, TrainRecipe::fp8_block);
    EXPECT_EQ(t.config.generation.precision->first_bf16, 1);
    EXPECT_EQ(t.config.generation.precision->last_bf16, 0);
    EXPECT_FALSE(t.config.generation.precision->power_of_two);
    EXPECT_EQ(t.config.generation.cache.format, KvFormat::fp8);
    EXPECT_EQ(t.config.generation.cache.calibration.percentile, 99.9);
    EXPECT_TRUE(t.config.generation.cache.queries);  // as in FlashAttention 3 with such a cache
    EXPECT_FALSE(t.config.generation.cache.mirrored);
    for (const char* key : {"precision", "kv_cache_dtype", "num_first_layers_in_bf16"})
        EXPECT_FALSE(t.lists(std::string("policy.generation.vllm_cfg.") + key)) << key;
    EXPECT_TRUE(t.lists("checkpointing.checkpoint_must_save_by"));
    EXPECT_EQ(t.config.generation.temperature, 0.7);
    EXPECT_FALSE(t.lists("policy.generation.temperature"));
    EXPECT_EQ(t.config.most_turns, 1);
    EXPECT_TRUE(t.says("grpo.max_rollout_turns", "env.command is missing"));
    ASSERT_TRUE(t.config.async);
    EXPECT_EQ(t.config.async->most_age, 2);
    EXPECT_TRUE(t.lists("grpo.async_grpo.in_flight_weight_updates"));
    EXPECT_FALSE(t.lists("grpo.async_grpo.recompute_kv_cache_after_weight_updates"));
    EXPECT_TRUE(t.lists("grpo.val_at_start"));
    EXPECT_TRUE(t.lists("policy.megatron_cfg.scheduler.lr_warmup_init"));
    EXPECT_FALSE(t.lists("loss_fn.truncated_importance_sampling_ratio"));
}

// The switches of vLLM's FP8 with updates in BF16.
TEST(NemoConfig, ScalesOfFp8Rollouts) {
    struct Case {
        const char* vllm;
        TrainRecipe recipe;
        bool powers, weights_listed, inputs_listed;
    };
    const Case cases[] = {
        {"precision: fp8", TrainRecipe::fp8_block, false, false, false},
        {"precision: fp8, pow2_weight_scaling_factors: true, pow2_activation_scaling_factors: true",
         TrainRecipe::fp8_block, true, false, false},
        {"precision: fp8, pow2_weight_scaling_factors: true", TrainRecipe::fp8_block, false, true, false},
        {"precision: fp8, is_mx: true, pow2_weight_scaling_factors: true, pow2_activation_scaling_factors: true",
         TrainRecipe::mxfp8, false, false, false},
    };
    for (const Case& c : cases) {
        SCOPED_TRACE(c.vllm);
        TempDir dir;
        const Translated t = translated(
            dir, fmt::format("defaults: grpo_math_1B.yaml\npolicy: {{generation: {{vllm_cfg: {{{}}}}}}}\n", c.vllm));
        EXPECT_EQ(t.config.precision.recipe, TrainRecipe::bf16);
        ASSERT_TRUE(t.config.generation.precision);
        EXPECT_EQ(t.config.generation.precision->recipe, c.recipe);
        EXPECT_EQ(t.config.generation.precision->power_of_two, c.powers);
        EXPECT_EQ(t.lists("policy.generation.vllm_cfg.pow2_weight_scaling_factors"), c.weights_listed);
        EXPECT_EQ(t.lists("policy.generation.vllm_cfg.pow2_activation_scaling_factors"), c.inputs_listed);
        EXPECT_FALSE(t.lists("policy.generation.vllm_cfg.is_mx"));
        EXPECT_FALSE(t.lists("policy.generation.vllm_cfg.precision"));
    }
}

TEST(NemoConfig, Fp8OnBothSides) {
    TempDir dir;
    const std::string recipe = R"(
defaults: [grpo_math_1B.yaml]
loss_fn: {use_importance_sampling_correction: true}
policy:
  megatron_cfg:
    enabled: true
    fp8_cfg: {enabled: true, fp8: e4m3, fp8_recipe: blockwise, fp8_param: false}
    env_vars: {NVTE_FP8_BLOCK_SCALING_FP32_SCALES: "SCALES"}
  generation:
    vllm_cfg: {precision: fp8, num_first_layers_in_bf16: 1, num_last_layers_in_bf16: 2}
)";
    for (const bool fp32 : {true, false}) {
        std::string text = recipe;
        text.replace(text.find("SCALES\"}"), 6, fp32 ? "1" : "0");
        const Translated t = translated(dir, text);
        EXPECT_EQ(t.config.precision.recipe, TrainRecipe::fp8_block);
        EXPECT_EQ(t.config.precision.first_bf16, 1);
        EXPECT_EQ(t.config.precision.last_bf16, 2);
        EXPECT_EQ(t.config.precision.power_of_two, !fp32);
        EXPECT_FALSE(t.lists("policy.generation.vllm_cfg.precision"));
        EXPECT_FALSE(t.lists("policy.megatron_cfg.fp8_cfg.fp8"));
    }
}

TEST(NemoConfig, DifferentDefaultsAreWrittenAndReported) {
    TempDir dir;
    const Translated t = translated(dir, "policy: {model_name: M}\ngrpo: {num_prompts_per_step: 64}\n");
    EXPECT_EQ(t.config.validation_every, 10);
    EXPECT_EQ(t.config.saving.keep, 3);
    EXPECT_EQ(t.config.train_batch, 512);
    const auto tells = [&](std::string_view key) {
        return std::ranges::any_of(t.text.defaults, [&](const std::string& line) { return line.starts_with(key); });
    };
    for (const char* key : {"grpo.val_period:", "checkpointing.keep_top_k:", "policy.train_global_batch_size:",
                            "policy.optimizer.lr_warmup_iters:", "data.task:"})
        EXPECT_TRUE(tells(key)) << key;
    EXPECT_FALSE(tells("grpo.num_prompts_per_step:"));
}

// DAPO's recipes, in which the multiplier comes before the keys that it needs.
TEST(NemoConfig, DynamicSamplingHasItsMultiplier) {
    TempDir dir;
    const Translated t = translated(dir, R"(
policy: {model_name: M}
grpo: {batch_multiplier: 3, use_dynamic_sampling: true, num_prompts_per_step: 512, seq_logprob_error_threshold: 2}
)");
    EXPECT_EQ(t.config.batch_multiplier, 3);
    EXPECT_EQ(t.config.batch_prompts(), 1536);
    EXPECT_EQ(t.config.seq_error_threshold, 2);
    EXPECT_FALSE(t.lists("grpo.batch_multiplier"));
    const Translated off = translated(dir, "policy: {model_name: M}\ngrpo: {batch_multiplier: 3}\n");
    EXPECT_TRUE(off.says("grpo.batch_multiplier", "needs grpo.use_dynamic_sampling: true"));
}

// A key that excludes another one is reported, even if its value is false.
TEST(NemoConfig, KeysThatExcludeEachOther) {
    TempDir dir;
    const Translated t = translated(dir, R"(
policy: {model_name: M, max_grad_norm: 2, megatron_cfg: {enabled: true, optimizer: {clip_grad: 0.5}}}
loss_fn: {use_cispo: true, token_level_loss: false, ratio_clip_c: 3, use_kl_in_reward: true}
)");
    EXPECT_TRUE(t.config.loss.use_cispo);
    EXPECT_TRUE(t.says("loss_fn.token_level_loss", "use_cispo needs"));
    EXPECT_TRUE(t.says("loss_fn.ratio_clip_c", "use_cispo needs"));
    EXPECT_TRUE(t.says("loss_fn.use_kl_in_reward", "needs grpo.adv_estimator.name: reinforce_plus_plus"));
    EXPECT_EQ(t.config.optimizer.clip, 0.5);
    EXPECT_TRUE(t.says("policy.max_grad_norm", "another key"));
}

// NeMo RL uses the estimator's own keys.
TEST(NemoConfig, TheEstimatorsSwitchesWin) {
    TempDir dir;
    const auto estimator = [&](std::string_view grpo) {
        return translated(dir, fmt::format("defaults: grpo_math_1B.yaml\ngrpo: {{{}}}\n", grpo));
    };
    const std::string own = "grpo.adv_estimator.";
    for (const char* no : {"false", "False"}) {
        const Translated t = estimator(
            fmt::format("adv_estimator: {{name: grpo, use_leave_one_out_baseline: {0}, normalize_rewards: {0}}}", no));
        EXPECT_FALSE(t.config.advantage.leave_one_out);
        EXPECT_FALSE(t.config.advantage.normalize_rewards);
        for (const char* key : {"use_leave_one_out_baseline", "normalize_rewards"}) {
            EXPECT_FALSE(t.lists(own + key));
            EXPECT_TRUE(t.says(fmt::format("grpo.{}", key), "another key of the recipe decides"));
        }
    }
    // Keys that an estimator lacks are true; interpolated values are used.
    EXPECT_TRUE(
        estimator("use_leave_one_out_baseline: false, adv_estimator: {name: grpo}").config.advantage.leave_one_out);
    const Translated put = estimator(
        "use_leave_one_out_baseline: false, adv_estimator: {name: grpo, "
        "use_leave_one_out_baseline: \"${grpo.use_leave_one_out_baseline}\"}");
    EXPECT_FALSE(put.config.advantage.leave_one_out);
    EXPECT_FALSE(put.lists("grpo.use_leave_one_out_baseline"));
    // Recipes from before estimators were introduced.
    EXPECT_FALSE(estimator("normalize_rewards: false").config.advantage.normalize_rewards);
}

TEST(NemoConfig, TheKlTermInTheRewardIsThatOfReinforcePlusPlus) {
    TempDir dir;
    const Translated t = translated(dir, R"(
policy: {model_name: M}
loss_fn: {use_kl_in_reward: true, reference_policy_kl_penalty: 0.02, reference_policy_kl_type: k2}
grpo: {adv_estimator: {name: reinforce_plus_plus, minus_baseline: true}}
)");
    EXPECT_TRUE(t.config.loss.kl_in_reward);
    EXPECT_EQ(t.config.loss.kl_penalty, 0.02);
    EXPECT_EQ(t.config.advantage.estimator, AdvantageEstimator::reinforce_plus_plus);
    EXPECT_FALSE(t.lists("loss_fn.use_kl_in_reward"));
}

// A key is handled if its name is known and its value has the effect of a run here, whatever the value.
TEST(NemoConfig, ValuesAreHandledByName) {
    TempDir dir;
    const auto with = [&](std::string_view more) {
        return translated(dir, fmt::format("defaults: grpo_math_1B.yaml\n{}", more));
    };
    struct Case {
        std::string recipe, key;
        bool listed;
    };
    const Case cases[] = {
        {"grpo: {adv_estimator: {name: reinforce_plus_plus, minus_baseline: false}}\n",
         "grpo.adv_estimator.minus_baseline", true},
        {"grpo: {adv_estimator: {name: reinforce_plus_plus, minus_baseline: true}}\n",
         "grpo.adv_estimator.minus_baseline", false},
        {"data: {shuffle: false}\n", "data.shuffle", true},
        {"data: {shuffle: True}\n", "data.shuffle", false},
        {"loss_fn: {foo_bar: false}\n", "loss_fn.foo_bar", true},
        {"loss_fn: {foo_bar: null}\n", "loss_fn.foo_bar", true},
        {"what: {is: {this: false}}\n", "what.is.this", true},
        {"grpo: {with_nothing: {}, with_none: []}\n", "grpo.with_nothing", true},
        {"grpo: {with_nothing: {}, with_none: []}\n", "grpo.with_none", true},
        {"loss_fn: {kl_input_clamp_value: 20, kl_output_clamp_value: 10.0}\n", "loss_fn.kl_input_clamp_value", false},
        {"loss_fn: {kl_input_clamp_value: 20, kl_output_clamp_value: 10.0}\n", "loss_fn.kl_output_clamp_value", false},
        {"loss_fn: {kl_input_clamp_value: null, kl_output_clamp_value: 5}\n", "loss_fn.kl_input_clamp_value", true},
        {"loss_fn: {kl_input_clamp_value: null, kl_output_clamp_value: 5}\n", "loss_fn.kl_output_clamp_value", true},
        {"loss_fn: {use_kl_in_reward: false}\n", "loss_fn.use_kl_in_reward", false},
        {"grpo: {batch_multiplier: 3}\n", "grpo.batch_multiplier", true},
        {"grpo: {batch_multiplier: 1.0}\n", "grpo.batch_multiplier", false},
        {"grpo: {advantage_clip_low: null}\n", "grpo.advantage_clip_low", false},
        {"policy: {optimizer: {name: SGD}}\n", "policy.optimizer.name", true},
        {"policy: {optimizer: {name: AdamW}}\n", "policy.optimizer.name", false},
        {"policy: {tokenizer: {name: \"${policy.model_name}\"}}\n", "policy.tokenizer.name", false},
        {"policy: {tokenizer: {name: other}}\n", "policy.tokenizer.name", true},
        {"policy: {generation: {vllm_cfg: {kv_cache_dtype: \"auto\"}}}\n", "policy.generation.vllm_cfg.kv_cache_dtype",
         false},
        {"policy: {generation: {vllm_cfg: {kv_cache_dtype: fp8_e5m2}}}\n", "policy.generation.vllm_cfg.kv_cache_dtype",
         true},
        {"policy: {generation: {vllm_cfg: {precision: bfloat16}}}\n", "policy.generation.vllm_cfg.precision", false},
        {"policy: {generation: {vllm_cfg: {precision: int4}}}\n", "policy.generation.vllm_cfg.precision", true},
        {"policy: {megatron_cfg: {enabled: true, freeze_moe_router: true}}\n", "policy.megatron_cfg.freeze_moe_router",
         true},
        {"policy: {megatron_cfg: {enabled: true, freeze_moe_router: false}}\n", "policy.megatron_cfg.freeze_moe_router",
         false},
        {"policy: {megatron_cfg: {enabled: true, odd_switch: false}}\n", "policy.megatron_cfg.odd_switch", true},
        {"policy: {dtensor_cfg: {lora_cfg: {enabled: true}}}\n", "policy.dtensor_cfg.lora_cfg.enabled", true},
        {"policy: {dtensor_cfg: {lora_cfg: {enabled: false, dim: 8}}}\n", "policy.dtensor_cfg.lora_cfg.dim", false},
    };
    for (const Case& c : cases) EXPECT_EQ(with(c.recipe).lists(c.key), c.listed) << c.recipe << c.key;
}

// Validation has its own sampling; ${.a} refers to the key next to it.
TEST(NemoConfig, ValidationHasItsOwnSampling) {
    TempDir dir;
    const Translated t = translated(dir, R"(
defaults: grpo_math_1B.yaml
loss_fn: {reference_policy_kl_penalty: 0}
grpo: {val_num_generations_per_prompt: 4}
policy: {generation: {temperature: 0.8, top_p: 0.9, val_temperature: 0.6, val_top_p: "${.top_p}", val_top_k: "${.top_k}",
  vllm_cfg: {max_model_len: "${...max_total_sequence_length}"}}}
)");
    EXPECT_EQ(t.config.generation.validation_temperature, 0.6);
    EXPECT_EQ(t.config.generation.validation_top_p, 0.9);
    EXPECT_EQ(t.config.validation_answers, 4);
    for (const char* key : {"policy.generation.val_temperature", "policy.generation.val_top_p",
                            "policy.generation.val_top_k", "grpo.val_num_generations_per_prompt"})
        EXPECT_FALSE(t.lists(key)) << key;
    EXPECT_TRUE(t.lists("policy.generation.vllm_cfg.max_model_len"));
}

// Quoted words equal unquoted ones, as in examples/configs/grpo_math_8B_megatron_fp8.yaml.
TEST(NemoConfig, QuotesDoNotMatter) {
    TempDir dir;
    const Translated t = translated(dir, R"(
defaults: "grpo_math_1B.yaml"
loss_fn: {use_importance_sampling_correction: true}
policy:
  generation: {vllm_cfg: {precision: "fp8", use_deep_gemm: true, gpu_memory_utilization: 0.5, kv_cache_dtype: "fp8"}}
  megatron_cfg:
    enabled: True
    fp8_cfg: {enabled: true, fp8: "e4m3", fp8_recipe: "blockwise", fp8_param: false}
    optimizer: {use_precision_aware_optimizer: false}
    env_vars: {NVTE_FP8_BLOCK_SCALING_FP32_SCALES: "1"}
data: {train: {data_path: "a b.jsonl"}}
)");
    EXPECT_EQ(t.config.precision.recipe, TrainRecipe::fp8_block);
    EXPECT_FALSE(t.config.precision.power_of_two);
    EXPECT_FALSE(t.config.generation.precision);
    EXPECT_EQ(t.config.generation.cache.format, KvFormat::fp8);
    EXPECT_TRUE(t.config.generation.cache.mirrored);
    EXPECT_EQ(t.config.task.train, "a b.jsonl");
    for (const char* key : {"policy.megatron_cfg.fp8_cfg.fp8", "policy.megatron_cfg.fp8_cfg.fp8_recipe",
                            "policy.megatron_cfg.fp8_cfg.fp8_param", "policy.generation.vllm_cfg.precision"})
        EXPECT_FALSE(t.lists(key)) << key;
}

TEST(NemoConfig, Bf16RolloutsOfFp8Updates) {
    TempDir dir;
    const Translated t = translated(dir, R"(
defaults: grpo_math_1B.yaml
policy: {megatron_cfg: {enabled: true, fp8_cfg: {enabled: true, fp8_recipe: mxfp8}}}
)");
    EXPECT_EQ(t.config.precision.recipe, TrainRecipe::mxfp8);
    ASSERT_TRUE(t.config.generation.precision);
    EXPECT_EQ(t.config.generation.precision->recipe, TrainRecipe::bf16);
    EXPECT_FALSE(t.lists("policy.generation.vllm_cfg.precision"));
    // Blocks of 128 in rollouts and of 32 in updates.
    const Translated blocks = translated(dir, R"(
defaults: grpo_math_1B.yaml
policy: {megatron_cfg: {enabled: true, fp8_cfg: {enabled: true, fp8_recipe: mxfp8}},
  generation: {vllm_cfg: {precision: fp8, num_first_layers_in_bf16: 2}}}
)");
    EXPECT_EQ(blocks.config.precision.recipe, TrainRecipe::mxfp8);
    EXPECT_EQ(blocks.config.precision.first_bf16, 0);
    ASSERT_TRUE(blocks.config.generation.precision);
    EXPECT_EQ(blocks.config.generation.precision->recipe, TrainRecipe::fp8_block);
    EXPECT_EQ(blocks.config.generation.precision->first_bf16, 2);
}

// The product is that of the exact numbers. An invalid product stays unchanged and is reported.
TEST(NemoConfig, ProductsOfAnyNumbers) {
    TempDir dir;
    const auto length = [&](const std::string& product) {
        write_file(dir / "r.yaml", "policy: {model_name: M, max_total_sequence_length: \"${mul:" + product + "}\"}\n");
        const auto made = translate_nemo_recipe(dir / "r.yaml");
        if (!made.ok()) return std::string(made.error().message());
        const size_t at = made->yaml.find("max_total_sequence_length: ");
        return at == made->yaml.npos ? "" : made->yaml.substr(at + 27, made->yaml.find('\n', at) - at - 27);
    };
    EXPECT_EQ(length("512, 4"), "2048");
    EXPECT_EQ(length("1.5,512"), "768");
    for (const char* none : {"9999999999,9999999999", "512, x", "512 4", "5z, 2", "1e300, 1e300", ", 2"})
        EXPECT_EQ(length(none), "") << none;
}

TEST(NemoConfig, ErrorsNameTheProblem) {
    TempDir dir;
    const auto error = [&](std::string_view text) {
        write_file(dir / "r.yaml", text);
        const auto result = translate_nemo_recipe(dir / "r.yaml");
        return result.ok() ? "" : result.error().message();
    };
    EXPECT_NE(error("grpo: {seed: 1}\n").find("'policy.model_name' is missing"), std::string::npos);
    EXPECT_NE(error("defaults: none.yaml\npolicy: {model_name: M}\n").find("none.yaml"), std::string::npos);
    const std::string own = error("defaults: r.yaml\npolicy: {model_name: M}\n");
    EXPECT_NE(own.find("r.yaml: its 'defaults' include the file itself"), std::string::npos) << own;
    EXPECT_EQ(own.find("defaults:"), own.rfind("defaults:")) << own;
    write_file(dir / "s.yaml", "defaults: r.yaml\n");
    EXPECT_NE(error("defaults: s.yaml\npolicy: {model_name: M}\n").find("include the file itself"), std::string::npos);
    EXPECT_NE(error("- 1\n").find("one map"), std::string::npos);
}

}  // namespace
}  // namespace nibble::test
