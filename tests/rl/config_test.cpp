#include "rl/rl_config.h"

#include "support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace nibble {
namespace {

std::string config_error(std::string_view yaml) {
    const auto config = parse_rl_config(yaml, "rl.yaml");
    return config.ok() ? "" : config.error().message();
}

constexpr std::string_view least = "policy: {model_name: M}\ndata: {task: sort}\n";

TEST(RlConfig, DefaultsAreThoseOfNeMoRl) {
    const auto c = parse_rl_config(least, "rl.yaml");
    ASSERT_TRUE(c.ok()) << c.error().message();
    EXPECT_EQ(c->model, "M");
    EXPECT_EQ(c->prompts, 32);
    EXPECT_EQ(c->generations, 16);
    EXPECT_EQ(c->length, 512);
    EXPECT_EQ(c->seed, 42u);
    EXPECT_EQ(c->optimizer.learning_rate, 5e-6);
    EXPECT_EQ(c->optimizer.beta2, 0.999);
    EXPECT_EQ(c->optimizer.clip, 1);
    EXPECT_EQ(c->loss.kl_penalty, 0.01);
    EXPECT_EQ(c->loss.ratio_clip_max, 0.2);
    EXPECT_TRUE(c->advantage.leave_one_out);
    EXPECT_FALSE(c->scaling.has_value());
    EXPECT_EQ(c->precision.recipe, TrainRecipe::bf16);
    EXPECT_EQ(c->task.kind, TaskKind::sort);
}

TEST(RlConfig, EveryKeyIsRead) {
    const auto c = parse_rl_config(R"(
output: out
policy:
  model_name: M
  precision: float32
  train_global_batch_size: 4
  max_total_sequence_length: 64
  max_grad_norm: 0.5
  optimizer: {lr: 0.1, weight_decay: 0.2, adam_beta1: 0.3, adam_beta2: 0.4, adam_eps: 0.5, lr_warmup_iters: 6}
  generation: {max_new_tokens: 20, temperature: 0.7, val_temperature: 0, top_p: 0.9, val_top_p: 0.5, top_k: 40, stop_token_ids: [5, 6], stop_strings: [end, "\nQ:"]}
grpo:
  num_prompts_per_step: 2
  num_generations_per_prompt: 4
  max_num_steps: 7
  seed: 9
  normalize_rewards: false
  use_leave_one_out_baseline: false
  adv_estimator: {name: rloo}
  advantage_clip_low: -3
  advantage_clip_high: 3
  use_dynamic_sampling: true
  dynamic_sampling_max_gen_batches: 5
  batch_multiplier: 1.5
  seq_logprob_error_threshold: 1.25
  overlong_filtering: true
  reward_scaling: {enabled: true, source_min: 0, source_max: 1, target_min: -1, target_max: 1}
  reward_shaping: {enabled: true, overlong_buffer_length: 8, overlong_buffer_penalty: 2, max_response_length: 20}
  max_rollout_turns: 4
  async_grpo: {enabled: false, max_trajectory_age_steps: 3}
  val_period: 3
  max_val_samples: 11
loss_fn:
  reference_policy_kl_penalty: 0
  reference_policy_kl_type: k2
  ratio_clip_min: 0.1
  ratio_clip_max: 0.28
  ratio_clip_c: 10
  token_level_loss: true
  use_importance_sampling_correction: true
  truncated_importance_sampling_type: tis
  truncated_importance_sampling_ratio: 2
data: {task: countdown, difficulty: 2, prompt: "Q: {}\nA:", chat: false}
env: {command: [python3, judge.py], processes: 2, timeout_seconds: 1.5}
checkpointing: {save_period: 10, keep_top_k: 3}
)",
                                   "rl.yaml");
    ASSERT_TRUE(c.ok()) << c.error().message();
    EXPECT_EQ(c->output, "out");
    EXPECT_EQ(c->precision.recipe, TrainRecipe::fp32);
    EXPECT_EQ(c->train_batch, 4);
    EXPECT_EQ(c->length, 64);
    EXPECT_EQ(c->optimizer.clip, 0.5);
    EXPECT_EQ(c->optimizer.learning_rate, 0.1);
    EXPECT_EQ(c->optimizer.weight_decay, 0.2);
    EXPECT_EQ(c->optimizer.beta1, 0.3);
    EXPECT_EQ(c->optimizer.beta2, 0.4);
    EXPECT_EQ(c->optimizer.epsilon, 0.5);
    EXPECT_EQ(c->warmup, 6);
    EXPECT_EQ(c->generation.most_tokens, 20);
    EXPECT_EQ(c->generation.temperature, 0.7);
    EXPECT_EQ(c->generation.top_p, 0.9);
    EXPECT_EQ(c->generation.top_k, 40);
    EXPECT_EQ(c->generation.validation_top_p, 0.5);
    EXPECT_EQ(c->generation.validation_temperature, 0);
    EXPECT_EQ(c->generation.stop_tokens, (std::vector<int32_t>{5, 6}));
    EXPECT_EQ(c->generation.stop_texts, (std::vector<std::string>{"end", "\nQ:"}));
    EXPECT_EQ(c->prompts, 2);
    EXPECT_EQ(c->generations, 4);
    EXPECT_EQ(c->steps, 7);
    EXPECT_EQ(c->seed, 9u);
    EXPECT_FALSE(c->advantage.normalize_rewards);
    EXPECT_FALSE(c->advantage.leave_one_out);
    EXPECT_EQ(c->advantage.estimator, AdvantageEstimator::rloo);
    EXPECT_EQ(c->advantage.clip_low, -3);
    EXPECT_EQ(c->advantage.clip_high, 3);
    EXPECT_TRUE(c->dynamic_sampling);
    EXPECT_EQ(c->batch_multiplier, 1.5);
    EXPECT_EQ(c->batch_prompts(), 3);
    EXPECT_EQ(c->seq_error_threshold, 1.25);
    EXPECT_EQ(c->most_batches, 5);
    EXPECT_TRUE(c->overlong_filtering);
    ASSERT_TRUE(c->scaling.has_value());
    EXPECT_EQ(c->scaling->target_min, -1);
    ASSERT_TRUE(c->shaping.has_value());
    EXPECT_TRUE(c->shaping->overlong);
    EXPECT_EQ(c->shaping->max_response_length, 20);
    EXPECT_EQ(c->most_turns, 4);
    EXPECT_FALSE(c->async);
    EXPECT_EQ(c->validation_every, 3);
    EXPECT_EQ(c->validation_prompts, 11);
    EXPECT_EQ(c->loss.kl_penalty, 0);
    EXPECT_EQ(c->loss.kl_type, KlEstimator::k2);
    EXPECT_EQ(c->loss.ratio_clip_c, 10);
    EXPECT_EQ(c->loss.truncation, ImportanceTruncation::tis);
    EXPECT_EQ(c->loss.importance_high, 2);
    EXPECT_EQ(c->task.kind, TaskKind::countdown);
    EXPECT_EQ(c->task.difficulty, 2);
    EXPECT_EQ(c->task.prompt, "Q: {}\nA:");
    EXPECT_FALSE(c->task.chat);
    EXPECT_EQ(c->task.command.size(), 2u);
    EXPECT_EQ(c->task.processes, 2);
    EXPECT_EQ(c->task.timeout_seconds, 1.5);
    EXPECT_EQ(c->saving.every, 10);
    EXPECT_EQ(c->saving.keep, 3);
}

TEST(RlConfig, ErrorsNameTheProblem) {
    const std::string start(least);
    EXPECT_EQ(config_error(start), "");
    EXPECT_NE(config_error(start + "grpo: {num_prompts: 3}\n").find("num_prompts_per_step"), std::string::npos);
    EXPECT_EQ(config_error("data: {task: sort}\n"), "rl.yaml: 'policy.model_name' is missing");
    EXPECT_EQ(config_error("policy: {model_name: M}\n"), "rl.yaml: 'data.task' or 'data.train' is missing");
    EXPECT_EQ(config_error("policy: {model_name: M, precision: {recipe: nvfp4, row_scaled: true}}\n"
                           "data: {task: sort}\n"),
              "");
    EXPECT_NE(config_error("policy: {model_name: M, precision: fp8_delayed}\ndata: {task: sort}\n")
                  .find("not supported yet for rollouts"),
              std::string::npos);
    EXPECT_EQ(config_error("policy: {model_name: M, precision: nvfp4_w4a4}\ndata: {task: sort}\n"), "");
    EXPECT_EQ(config_error("policy: {model_name: M, generation: {precision: nvfp4_w4a4}}\ndata: {task: sort}\n"),
              "rl.yaml: policy.generation.precision: stored scales of inputs need updates in the same precision; "
              "use policy.precision");
    EXPECT_EQ(config_error("policy: {model_name: M, generation: {top_p: 0.7}}\ndata: {task: sort}\n"),
              "rl.yaml: policy.generation.top_p and top_k need loss_fn.reference_policy_kl_penalty: 0");
    EXPECT_EQ(config_error("policy: {model_name: M, generation: {top_p: 1, top_k: -1}}\ndata: {task: sort}\n"), "");
    EXPECT_EQ(config_error("policy: {model_name: M, generation: {top_k: -2}}\ndata: {task: sort}\n"),
              "rl.yaml:1: policy.generation.top_k must be at least -1, not -2");
    EXPECT_EQ(config_error("policy: {model_name: M, train_global_batch_size: 5}\ndata: {task: sort}\n"),
              "rl.yaml: policy.train_global_batch_size 5 does not divide the 512 answers of a step");
    EXPECT_EQ(config_error("policy: {model_name: M}\ndata: {task: sort, prompt: none}\n"),
              "rl.yaml: data.prompt: has no {} for the question");
    const std::string one = start + "grpo: {num_generations_per_prompt: 1";
    EXPECT_EQ(config_error(one + "}\n"),
              "rl.yaml: grpo.num_generations_per_prompt 1: a single answer has no other answers to compare with; use "
              "at least 2, "
              "or grpo.adv_estimator.name: reward");
    EXPECT_EQ(config_error(one + ", adv_estimator: {name: reward}}\n"), "");
    EXPECT_EQ(config_error(one + ", adv_estimator: {name: reward}, use_dynamic_sampling: true}\n"),
              "rl.yaml: grpo.use_dynamic_sampling: needs grpo.num_generations_per_prompt of at least 2");
    const std::string async = start + "grpo: {async_grpo: {enabled: true}";
    EXPECT_EQ(
        config_error(async + "}\n"),
        "rl.yaml: grpo.async_grpo: tokens of older weights need loss_fn.use_importance_sampling_correction: true");
    const std::string corrected = "}\nloss_fn: {use_importance_sampling_correction: true}\n";
    EXPECT_EQ(config_error(async + corrected), "");
    EXPECT_EQ(config_error(async + ", use_dynamic_sampling: true" + corrected),
              "rl.yaml: grpo.async_grpo and grpo.use_dynamic_sampling exclude each other");
    EXPECT_EQ(config_error(start + "grpo: {async_grpo: {enabled: true, prompts_in_flight: 31}" + corrected),
              "rl.yaml: grpo.async_grpo.prompts_in_flight 31: at least num_prompts_per_step 32");
    EXPECT_EQ(config_error("policy: {model_name: M}\ndata: {task: chess}\n"),
              "rl.yaml:2: data.task must be sum, sort, countdown or words, not 'chess'");
    EXPECT_EQ(config_error(start + "loss_fn: {use_cispo: true, disable_ppo_ratio: true}\n"),
              "rl.yaml: use_cispo needs token_level_loss: true, no ratio_clip_c and no disable_ppo_ratio");
}

// The output folder and the length of a run may change on resume; values that change results may not.
TEST(RlConfig, IdentityIsWhatDecidesTheBits) {
    const auto identity = [](std::string_view more) {
        const auto c = parse_rl_config(std::string(least) + std::string(more), "rl.yaml");
        EXPECT_TRUE(c.ok()) << c.error().message();
        return c.ok() ? rl_identity(*c) : Json();
    };
    const Json base = identity("grpo: {seed: 3}\n");
    EXPECT_EQ(
        identity("output: x\ngrpo: {seed: 3, max_num_steps: 5, val_period: 2}\ncheckpointing: {save_period: 1}\n"),
        base);
    EXPECT_NE(identity("grpo: {seed: 4}\n"), base);
    EXPECT_NE(identity("grpo: {seed: 3}\nloss_fn: {ratio_clip_min: 0.1}\n"), base);
}

// The data are configs and the identities that commit 8d459c62 stored for them, with the texts of their values.
TEST(RlConfig, IdentitiesOf8d459c62AreThoseOfTheirConfigs) {
    const auto recorded = read_json_file(test::test_data("identities_8d459c62.json"));
    ASSERT_TRUE(recorded.ok()) << recorded.error().message();
    ASSERT_EQ((*recorded)["rl"].size(), 3u);
    for (const Json& run : (*recorded)["rl"]) {
        SCOPED_TRACE(run["config"].get<std::string>());
        const auto config = parse_rl_config(run["config"].get<std::string>(), "rl.yaml");
        ASSERT_TRUE(config.ok()) << config.error().message();
        const auto stored = parse_json(run["identity"].get<std::string>());
        ASSERT_TRUE(stored.ok());
        const auto today = stored_rl_identity(*stored);
        ASSERT_TRUE(today.ok()) << today.error().message();
        EXPECT_EQ(*today, rl_identity(*config));
        Json own = rl_identity(*config);
        if (!config->task.train.empty()) own["data"]["train"] = "the hash of its rows";
        EXPECT_EQ(*stored_rl_identity(own), rl_identity(*config));
        Json other = *stored;
        other["policy"]["optimizer"]["lr"] = "1e-2";
        EXPECT_NE(*stored_rl_identity(other), rl_identity(*config));
    }
}

// Other spellings of the same run.
TEST(RlConfig, IdentityIsOfValues) {
    const auto identity = [](std::string_view yaml) {
        const auto c = parse_rl_config(yaml, "rl.yaml");
        EXPECT_TRUE(c.ok()) << yaml << (c.ok() ? "" : c.error().message());
        return c.ok() ? rl_identity(*c) : Json();
    };
    const Json base =
        identity("policy: {model_name: start, optimizer: {lr: 3.0e-4}}\ndata: {task: sum, chat: false}\n");
    for (const char* same :
         {"policy: {model_name: start, optimizer: {lr: 3e-4}}\ndata: {task: sum, chat: false}\n",
          "policy: {model_name: start, optimizer: {lr: 3.0e-4}}\ndata: {task: sum, chat: no}\ngrpo: {seed: 42}\n",
          "policy: {model_name: ./start, optimizer: {lr: 0.0003}, generation: {temperature: 1.0}}\n"
          "data: {task: sum, chat: false}\n",
          "policy: {model_name: start/, precision: bfloat16, optimizer: {lr: 0.0003}}\n"
          "data: {task: sum, chat: false}\ngrpo: {async_grpo: {enabled: false, max_trajectory_age_steps: 3}}\n"})
        EXPECT_EQ(identity(same), base) << same;
    for (const char* other : {"policy: {model_name: start, optimizer: {lr: 3.1e-4}}\ndata: {task: sum, chat: false}\n",
                              "policy: {model_name: start, optimizer: {lr: 3e-4}}\ndata: {task: sort, chat: false}\n",
                              "policy: {model_name: start, optimizer: {lr: 3e-4}, generation: {precision: bf16}}\n"
                              "data: {task: sum, chat: false}\n"})
        EXPECT_NE(identity(other), base) << other;
}

TEST(RlConfig, RowsOfFilesInsteadOfATask) {
    const auto c = parse_rl_config(R"(
policy: {model_name: M}
data: {train: a.jsonl, validation: b.jsonl, input_key: question, output_key: answer, reward: choice, format: "^A", format_share: 0.2}
)",
                                   "rl.yaml");
    ASSERT_TRUE(c.ok()) << c.error().message();
    EXPECT_EQ(c->task.train, "a.jsonl");
    EXPECT_EQ(c->task.validation, "b.jsonl");
    EXPECT_EQ(c->task.input_key, "question");
    EXPECT_EQ(c->task.output_key, "answer");
    EXPECT_EQ(c->task.reward.rule, AnswerRule::choice);
    EXPECT_EQ(c->task.reward.format, "^A");
    EXPECT_EQ(c->task.reward.format_share, 0.2);
    EXPECT_EQ(rl_identity(*c).dump().find("b.jsonl"), std::string::npos);  // may change on resume
    const auto error = [](std::string_view data, std::string_view more = "") {
        return config_error(fmt::format("policy: {{model_name: M}}\ndata: {{{}}}\n{}", data, more));
    };
    EXPECT_EQ(error("chat: false"), "rl.yaml: 'data.task' or 'data.train' is missing");
    EXPECT_EQ(error("task: sum, train: a"), "rl.yaml: data.task and data.train exclude each other");
    EXPECT_EQ(error("train: a, difficulty: 2"), "rl.yaml:2: data.difficulty has no effect with data.train");
    EXPECT_EQ(error("task: sum, reward: math"), "rl.yaml:2: data.reward has no effect without data.train");
    EXPECT_EQ(error("train: a, reward: math", "env: {command: [judge]}"),
              "rl.yaml:2: data.reward has no effect with env.command or env.function, which judge the answers");
    EXPECT_EQ(error("train: a", "grpo: {val_period: 5}"), "rl.yaml: grpo.val_period 5: data.validation is missing");
    EXPECT_EQ(error("train: a, format_share: 0.5"), "rl.yaml:2: data.format_share has no effect without data.format");
    EXPECT_NE(error("train: a, format: \"(\"").find("rl.yaml: data.format: "), std::string::npos);
    EXPECT_EQ(error("train: a, reward: judge"),
              "rl.yaml:2: data.reward must be math, exact, regex, choice or code, not 'judge'");
}

TEST(RlConfig, TheExportFormatAndTheSavingDeadlineAreRead) {
    const auto read = [](std::string_view more) {
        return parse_rl_config(std::string(least) + std::string(more), "rl.yaml");
    };
    const auto c = read("export: {format: nvfp4}\ncheckpointing: {checkpoint_must_save_by: \"00:03:45:00\"}\n");
    ASSERT_TRUE(c.ok()) << c.error().message();
    EXPECT_EQ(c->export_format, Format::nvfp4);
    EXPECT_EQ(c->must_save_by, 13500);
    EXPECT_EQ(rl_identity(*c), rl_identity(*read("")));  // may change on resume
    EXPECT_EQ(read("checkpointing: {checkpoint_must_save_by: null}\n")->must_save_by, 0);
    EXPECT_EQ(read("checkpointing: {checkpoint_must_save_by: soon}\n").error().message(),
              "rl.yaml:3: checkpointing.checkpoint_must_save_by: 'soon' is not a time DD:HH:MM:SS above 0");
    const auto none = read("checkpointing: {enabled: false, save_period: 3}\n");
    ASSERT_TRUE(none.ok()) << none.error().message();
    EXPECT_EQ(none->saving.every, 0);
    EXPECT_EQ(none->saving.keep, 0);
    EXPECT_NE(read("checkpointing: {enabled: false, checkpoint_must_save_by: \"00:03:45:00\"}\n")
                  .error()
                  .message()
                  .find("saves nothing"),
              std::string::npos);
    EXPECT_NE(
        read("export: {format: gguf}\n").error().message().find("must be nvfp4, mxfp8 or fp8_block128, not 'gguf'"),
        std::string::npos);
}

TEST(RlConfig, ProgramsHaveLimits) {
    const auto read = [](std::string_view data) {
        return parse_rl_config(fmt::format("policy: {{model_name: M}}\ndata: {{train: a, {}}}\n", data), "rl.yaml");
    };
    const auto usual = read("reward: code");
    ASSERT_TRUE(usual.ok()) << usual.error().message();
    EXPECT_EQ(usual->task.reward.rule, AnswerRule::code);
    EXPECT_EQ(usual->task.reward.code.limits.seconds, 5);
    EXPECT_FALSE(usual->task.reward.code.partial);
    const auto own =
        read("reward: code, code: {seconds: 0.5, memory_mib: 100, file_mib: 2, output_kib: 8, partial: true}");
    ASSERT_TRUE(own.ok()) << own.error().message();
    const CodeRewardOptions& code = own->task.reward.code;
    EXPECT_EQ(code.limits.seconds, 0.5);
    EXPECT_EQ(code.limits.memory_bytes, 100 << 20);
    EXPECT_EQ(code.limits.file_bytes, 2 << 20);
    EXPECT_EQ(code.limits.output_bytes, 8 << 10);
    EXPECT_TRUE(code.partial);
    EXPECT_EQ(read("code: {seconds: 1}").error().message(),
              "rl.yaml:2: data.code.seconds has no effect without data.reward: code");
    EXPECT_FALSE(read("reward: code, code: {seconds: 0}").ok());
    EXPECT_FALSE(read("reward: code, code: {cpus: 1}").ok());
}

TEST(RlConfig, RolloutsHaveACacheAndAPrecision) {
    const auto read = [](std::string_view generation) {
        return parse_rl_config(
            fmt::format("policy: {{model_name: M, generation: {{{}}}}}\ndata: {{task: sum}}\n", generation), "rl.yaml");
    };
    const auto usual = read("");
    ASSERT_TRUE(usual.ok()) << usual.error().message();
    EXPECT_EQ(usual->generation.cache.format, KvFormat::none);
    EXPECT_FALSE(usual->generation.precision);
    for (const auto& [name, format] : {std::pair{"auto", KvFormat::none},
                                       {"bf16", KvFormat::none},
                                       {"fp8", KvFormat::fp8},
                                       {"fp8_e4m3", KvFormat::fp8},
                                       {"fp8_page", KvFormat::fp8_page}}) {
        const auto c = read(fmt::format("kv_cache_dtype: {}", name));
        ASSERT_TRUE(c.ok()) << c.error().message();
        EXPECT_EQ(c->generation.cache.format, format);
        EXPECT_TRUE(c->generation.cache.mirrored);
    }
    const auto own = read("kv_cache_dtype: fp8, kv_cache_percentile: 99.9, kv_cache_margin: 1.1, precision: fp8_block");
    ASSERT_TRUE(own.ok()) << own.error().message();
    EXPECT_EQ(own->generation.cache.calibration.percentile, 99.9);
    EXPECT_EQ(own->generation.cache.calibration.margin, 1.1);
    EXPECT_FALSE(own->generation.cache.mirrored);  // only the generator uses it
    EXPECT_EQ(own->generation.precision->recipe, TrainRecipe::fp8_block);
    EXPECT_FALSE(own->generation.cache.queries);
    EXPECT_TRUE(read("kv_cache_dtype: fp8, query_dtype: fp8")->generation.cache.queries);
    EXPECT_FALSE(read("kv_cache_dtype: fp8, query_dtype: auto")->generation.cache.queries);
    EXPECT_NE(read("query_dtype: fp8").error().message().find("FP8 queries need an fp8 KV"), std::string::npos);
    EXPECT_FALSE(read("kv_cache_dtype: fp8, query_dtype: nvfp4").ok());
    EXPECT_FALSE(read("kv_cache_dtype: nvfp4").ok());
    EXPECT_FALSE(read("kv_cache_dtype: fp8, kv_cache_percentile: 101").ok());
    EXPECT_FALSE(read("precision: fp32").ok());
}

// std::clamp is undefined for such bounds.
TEST(RlConfig, BoundsMustLeaveRoom) {
    const std::string start(least);
    EXPECT_EQ(config_error(start + "grpo: {advantage_clip_low: 1, advantage_clip_high: -1}\n"),
              "rl.yaml: advantage_clip_low 1 is above advantage_clip_high -1");
    EXPECT_EQ(config_error(start + "grpo: {advantage_clip_low: 1, advantage_clip_high: 1}\n"), "");
    EXPECT_EQ(config_error(start + "grpo: {advantage_clip_low: 1}\n"), "");
    const auto truncation = [&](std::string_view type, std::string_view ratio, std::string_view least_ratio) {
        return config_error(
            fmt::format("{}loss_fn: {{use_importance_sampling_correction: true, truncated_importance_sampling_type: "
                        "{}, truncated_importance_sampling_ratio: {}, truncated_importance_sampling_ratio_min: {}}}\n",
                        start, type, ratio, least_ratio));
    };
    for (const char* type : {"tis", "icepop", "seq-mask-tis"}) {
        EXPECT_EQ(
            truncation(type, "0.5", "5"),
            "rl.yaml: truncated_importance_sampling_ratio_min 5 is above truncated_importance_sampling_ratio 0.5");
        EXPECT_EQ(truncation(type, "5", "0.5"), "");
        EXPECT_EQ(truncation(type, "0", "0"), "rl.yaml: truncated_importance_sampling_ratio 0: must be above 0");
    }
    EXPECT_EQ(truncation("none", "2", "null"),
              "rl.yaml: truncated_importance_sampling_ratio and its _min need truncated_importance_sampling_type");
    EXPECT_EQ(config_error(start + "loss_fn: {disable_ppo_ratio: true, ratio_clip_c: 3}\n"),
              "rl.yaml: disable_ppo_ratio and ratio_clip_c exclude each other");
}

// Keys without effect are reported.
TEST(RlConfig, KeysWithoutEffectAreErrors) {
    const std::string start(least);
    EXPECT_EQ(config_error(start + "env: {command: []}\n"),
              "rl.yaml:3: env.command must be a list of words of a command");
    EXPECT_EQ(config_error(start + "env: {command: [], processes: 2}\n"),
              "rl.yaml:3: env.command must be a list of words of a command");
    EXPECT_EQ(config_error(start + "env: {processes: 2}\n"),
              "rl.yaml:3: env.processes has no effect without env.command");
    EXPECT_EQ(config_error(start + "env: {command: null, timeout_seconds: 3}\n"),
              "rl.yaml:3: env.timeout_seconds has no effect without env.command");
    EXPECT_EQ(config_error(start + "env: {command: null}\n"), "");
    EXPECT_EQ(config_error(start + "env: {command: [judge], processes: 2}\ngrpo: {max_rollout_turns: 3}\n"), "");
    EXPECT_EQ(config_error(start + "env: {function: judge}\ngrpo: {max_rollout_turns: 3}\n"), "");
    EXPECT_EQ(config_error(start + "env: {command: [judge], function: judge}\n"),
              "rl.yaml:3: env.function has no effect with env.command, which judges the answers");
    EXPECT_EQ(config_error(start + "grpo: {max_rollout_turns: 1}\n"), "");
    EXPECT_EQ(config_error(start + "grpo: {max_rollout_turns: 3}\n"),
              "rl.yaml:3: grpo.max_rollout_turns 3: only an environment continues an answer; env.command is missing");
    for (const char* key : {"kv_cache_percentile", "kv_cache_margin"})
        for (const char* cache : {"", "kv_cache_dtype: auto, ", "kv_cache_dtype: fp8_page, "})
            EXPECT_EQ(config_error(fmt::format(
                          "policy: {{model_name: M, generation: {{{}{}: 99}}}}\ndata: {{task: sum}}\n", cache, key)),
                      fmt::format("rl.yaml:1: policy.generation.{} has no effect without kv_cache_dtype: fp8", key));
}

// NeMo RL's names of switches: in the map of a precision, or next to the generation's precision.
TEST(RlConfig, SwitchesHaveNeMoRlsNames) {
    const auto read = [](std::string_view policy) {
        return parse_rl_config(fmt::format("policy: {{model_name: M, {}}}\ndata: {{task: sum}}\n", policy), "rl.yaml");
    };
    const auto error = [&](std::string_view policy) {
        const auto c = read(policy);
        return c.ok() ? "" : c.error().message();
    };
    const std::string theirs =
        "num_first_layers_in_bf16: 1, num_last_layers_in_bf16: 2, pow2_weight_scaling_factors: true";
    const auto is_right = [](const std::optional<TrainPrecision>& p) {
        return p && p->recipe == TrainRecipe::fp8_block && p->first_bf16 == 1 && p->last_bf16 == 2 && p->power_of_two;
    };
    for (const std::string& policy : {"generation: {precision: {recipe: fp8_block, " + theirs + "}}",
                                      "generation: {precision: fp8_block, " + theirs + "}",
                                      "generation: {" + theirs + ", precision: {recipe: fp8_block}}"}) {
        const auto c = read(policy);
        ASSERT_TRUE(c.ok()) << c.error().message();
        EXPECT_TRUE(is_right(c->generation.precision)) << policy;
        EXPECT_EQ(c->precision.recipe, TrainRecipe::bf16);
    }
    const auto both = read("precision: {recipe: fp8_block, " + theirs + "}");
    ASSERT_TRUE(both.ok()) << both.error().message();
    EXPECT_TRUE(is_right(both->precision));
    EXPECT_FALSE(both->generation.precision);
    EXPECT_EQ(error("precision: {recipe: fp8_block, first_bf16: 1, num_first_layers_in_bf16: 1}"),
              "rl.yaml:1: policy.precision: num_first_layers_in_bf16 and first_bf16 are one switch, given twice");
    EXPECT_EQ(error("generation: {precision: {recipe: fp8_block, last_bf16: 1}, num_last_layers_in_bf16: 1}"),
              "rl.yaml:1: policy.generation.precision: num_last_layers_in_bf16 and last_bf16 are one switch, given "
              "twice");
    EXPECT_EQ(error("generation: {num_first_layers_in_bf16: 1}"),
              "rl.yaml:1: policy.generation.num_first_layers_in_bf16 belongs to policy.generation.precision; "
              "policy.precision has it as first_bf16");
    EXPECT_EQ(error("generation: {precision: mxfp8, pow2_weight_scaling_factors: true}"),
              "rl.yaml:1: policy.generation.precision.power_of_two has no effect with recipe mxfp8");
    EXPECT_FALSE(read("generation: {precision: bfloat16, num_first_layers_in_bf16: 1}").ok());
}

}  // namespace
}  // namespace nibble
