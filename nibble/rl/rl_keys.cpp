#include "rl/rl_keys.h"

#include "run/deadline.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace nibble {
namespace {

ValueKind<int> difficulty_kind() {
    return {.text = "1 to 6",
            .read = [](const YamlNode& node, const std::string& name) -> Result<int> {
                NIBBLE_TRY(const int value, as_int(node, name));
                if (value < 1 || value > 6) return fail("{}: {} must be 1 to 6, not {}", node.where(), name, value);
                return value;
            },
            .json = [](int value) -> Json { return value; }};
}

ValueKind<int32_t> token_kind() {
    return {.text = "token",
            .read = [](const YamlNode& node, const std::string& name) -> Result<int32_t> { return as_int(node, name); },
            .json = [](int32_t value) -> Json { return value; }};
}

// Accepts any non-empty text.
ValueKind<std::string> stop_text_kind() {
    ValueKind<std::string> kind = lines_kind();
    kind.read = [](const YamlNode& node, const std::string& name) {
        return node.text.empty() ? as_text(node, name) : as_lines(node, name);
    };
    return kind;
}

ValueKind<std::vector<std::string>> command_kind() {
    ValueKind<std::vector<std::string>> kind = list_kind(text_kind(), "words of a command", 1);
    kind.read = [read = kind.read](const YamlNode& node, const std::string& name) {
        return node.is_null() ? Result(std::vector<std::string>()) : read(node, name);
    };
    return kind;
}

// Accepts 0, null and vLLM's -1 as "off".
ValueKind<int64_t> top_k_kind() {
    return {.text = "whole number; 0, -1 or null: off",
            .read = [](const YamlNode& node, const std::string& name) -> Result<int64_t> {
                if (node.is_null()) return int64_t{0};
                NIBBLE_TRY(const int64_t value, as_int64(node, name));
                if (value < -1) return fail("{}: {} must be at least -1, not {}", node.where(), name, value);
                return std::max<int64_t>(value, 0);
            },
            .json = [](int64_t value) -> Json { return value; }};
}

// Reads a number in multiples of `unit` bytes.
ValueKind<int64_t> bytes_kind(double unit) {
    const ValueKind<double> units = number_kind(1, 1 << 20);
    return {.text = units.text,
            .read = [=](const YamlNode& node, const std::string& name) -> Result<int64_t> {
                NIBBLE_TRY(const double value, units.read(node, name));
                return static_cast<int64_t>(value * unit);
            },
            .json = [=](int64_t bytes) -> Json { return static_cast<double>(bytes) / unit; }};
}

ValueKind<double> time_limit_kind() {
    return {.text = "DD:HH:MM:SS",
            .read = [](const YamlNode& node, const std::string& name) -> Result<double> {
                if (node.is_null()) return 0.0;
                NIBBLE_TRY(const std::string text, as_text(node, name));
                return seconds_of_limit(text).within(node.where() + ": " + name);
            },
            .json = [](double seconds) -> Json { return seconds > 0 ? Json(seconds) : Json(); }};
}

constexpr double beyond = 1e30;  // no bound

template <class... Members>
auto in_config(Members... members) {
    return at(&RlKeys::c, members...);
}

void add_policy_keys(Schema<RlKeys>& s) {
    using O = TrainOptimizer;
    s.key("policy.model_name", path_kind(), in_config(&RlConfig::model),
          "checkpoint that is not quantized: a folder or a .gguf file");
    s.group("policy.precision", train_precision_schema(), in_config(&RlConfig::precision));
    s.shorthand("policy.precision", "recipe");
    s.key("policy.train_global_batch_size", count_kind(1), in_config(&RlConfig::train_batch),
          "answers of an update; divides the answers of a step")
        .says("all answers of a step");
    s.key("policy.max_total_sequence_length", count_kind(2), in_config(&RlConfig::length),
          "tokens of a prompt and its answer, all turns; at most the context of the model");
    s.key("policy.sequence_packing.train_mb_tokens", count_kind(0), in_config(&RlConfig::row_tokens),
          "answers are trained in rows of up to this many tokens, each as a document; 0: one answer a row on a CPU, "
          "16,384 tokens on a GPU");
    s.key("policy.max_grad_norm", number_kind(0, beyond), in_config(&RlConfig::optimizer, &O::clip),
          "largest global norm of the gradient; 0: no limit");
    s.key("policy.optimizer.lr", number_kind(0, 10), in_config(&RlConfig::optimizer, &O::learning_rate),
          "learning rate of AdamW after the warm-up");
    s.key("policy.optimizer.weight_decay", number_kind(0, 100), in_config(&RlConfig::optimizer, &O::weight_decay),
          "decoupled weight decay of matrices");
    s.key("policy.optimizer.adam_beta1", number_kind(0, 1 - 1e-9), in_config(&RlConfig::optimizer, &O::beta1),
          "decay of the first moment");
    s.key("policy.optimizer.adam_beta2", number_kind(0, 1 - 1e-9), in_config(&RlConfig::optimizer, &O::beta2),
          "decay of the second moment");
    s.key("policy.optimizer.adam_eps", number_kind(1e-30, 1), in_config(&RlConfig::optimizer, &O::epsilon),
          "added to the root of the second moment");
    s.key("policy.optimizer.lr_warmup_iters", count_kind(0), in_config(&RlConfig::warmup),
          "steps in which the learning rate rises from 0");
}

void add_generation_keys(Schema<RlKeys>& s) {
    const std::string g = "policy.generation.";
    const auto in = [](auto... members) { return in_config(&RlConfig::generation, members...); };
    using G = RlGeneration;
    s.group(g + "precision", train_precision_schema(), at(&RlKeys::rollouts));
    s.shorthand(g + "precision", "recipe");
    s.key(g + "kv_cache_dtype",
          word_kind<KvFormat>({{"auto", KvFormat::none},
                               {"bf16", KvFormat::none},
                               {"bfloat16", KvFormat::none},
                               {"fp8", KvFormat::fp8},
                               {"fp8_e4m3", KvFormat::fp8},
                               {"fp8_page", KvFormat::fp8_page}}),
          in(&G::cache, &TrainCache::format),
          "KV cache of rollouts; fp8: one scale for K and one for V of each layer; fp8_page: scales of the cached "
          "values");
    const auto has_scales = [](const RlKeys& k) { return k.c.generation.cache.format == KvFormat::fp8; };
    s.key(g + "kv_cache_percentile", number_kind(0, 100),
          in(&G::cache, &TrainCache::calibration, &CacheCalibration::percentile),
          "percentile of the largest values that decides a scale of the cache")
        .needs(has_scales, "without kv_cache_dtype: fp8");
    s.key(g + "kv_cache_margin", number_kind(1e-3, 1000),
          in(&G::cache, &TrainCache::calibration, &CacheCalibration::margin), "factor on a scale of the cache")
        .needs(has_scales, "without kv_cache_dtype: fp8");
    s.key(g + "query_dtype",
          word_kind<bool>({{"auto", false}, {"bf16", false}, {"bfloat16", false}, {"fp8", true}, {"fp8_e4m3", true}}),
          in(&G::cache, &TrainCache::queries), "queries of attention; fp8: with an fp8 cache");
    s.key(g + "max_new_tokens", count_kind(1), in(&G::most_tokens), "largest number of tokens of a turn")
        .says("the rest of the sequence");
    s.key(g + "temperature", number_kind(1e-3, 1000), in(&G::temperature),
          "temperature of the distribution that is sampled and learned");
    s.key(g + "val_temperature", optional_kind(number_kind(0, 1000)), in(&G::validation_temperature),
          "temperature of validation; 0: the most likely token")
        .says("temperature")
        .keeps_bits();
    s.key(g + "top_p", number_kind(1e-6, 1), in(&G::top_p), "sample from the most likely tokens of this probability");
    s.key(g + "val_top_p", optional_kind(number_kind(1e-6, 1)), in(&G::validation_top_p), "top_p of validation")
        .says("top_p")
        .keeps_bits();
    s.key(g + "top_k", top_k_kind(), in(&G::top_k), "sample from this many most likely tokens");
    s.key(g + "stop_token_ids", list_kind(token_kind(), "tokens"), in(&G::stop_tokens),
          "tokens that end an answer, in addition to those of the model");
    s.key(g + "stop_strings", list_kind(stop_text_kind(), "texts"), in(&G::stop_texts), "texts that end an answer");
    const auto no_precision = [](std::string name) {
        return [=](const RlKeys&) {
            return fmt::format("belongs to policy.generation.precision; policy.precision has it as {}", name);
        };
    };
    s.key(g + rl_switch_names[0].first, optional_kind(count_kind(0)), at(&RlKeys::first_bf16),
          "NeMo RL's name of precision.first_bf16")
        .refuses(no_precision(rl_switch_names[0].second));
    s.key(g + rl_switch_names[1].first, optional_kind(count_kind(0)), at(&RlKeys::last_bf16),
          "NeMo RL's name of precision.last_bf16")
        .refuses(no_precision(rl_switch_names[1].second));
    s.key(g + rl_switch_names[2].first, optional_kind(flag_kind()), at(&RlKeys::power_of_two),
          "NeMo RL's name of precision.power_of_two")
        .refuses(no_precision(rl_switch_names[2].second));
}

void add_reward_keys(Schema<RlKeys>& s) {
    const std::string scaling = "grpo.reward_scaling.", shaping = "grpo.reward_shaping.";
    const auto scales = [](const RlKeys& k) { return k.scales; };
    const auto shapes = [](const RlKeys& k) { return k.shapes; };
    const std::string disabled = "without enabled: true";
    const auto add_bound = [&](const char* name, double RewardScaling::*member, const char* help) {
        s.key(scaling + name, number_kind(-beyond, beyond), at(&RlKeys::scaling, member), help).bits_where(scales);
    };
    s.key(scaling + "enabled", flag_kind(), at(&RlKeys::scales),
          "clamp rewards to [source_min, source_max] and map that range to [target_min, target_max]");
    add_bound("source_min", &RewardScaling::source_min, "lower bound of rewards");
    add_bound("source_max", &RewardScaling::source_max, "upper bound of rewards");
    add_bound("target_min", &RewardScaling::target_min, "value that the lower bound is mapped to");
    add_bound("target_max", &RewardScaling::target_max, "value that the upper bound is mapped to");
    s.key(shaping + "enabled", flag_kind(), at(&RlKeys::shapes), "lower the rewards of long answers");
    s.key(shaping + "overlong_buffer_length", count_kind(1),
          at(&RlKeys::shaping, &RewardShaping::overlong_buffer_length),
          "tokens before max_response_length in which the penalty rises")
        .bits_where(shapes);
    s.key(shaping + "overlong_buffer_penalty", number_kind(0, beyond),
          at(&RlKeys::shaping, &RewardShaping::overlong_buffer_penalty), "penalty at max_response_length")
        .bits_where(shapes);
    s.key(shaping + "max_response_length", count_kind(1), at(&RlKeys::shaping, &RewardShaping::max_response_length),
          "tokens of an answer at which the penalty is whole")
        .says("policy.max_total_sequence_length")
        .bits_where(shapes);
    s.key(shaping + "stop_properly_penalty_coef", optional_kind(number_kind(0, 1)),
          at(&RlKeys::shaping, &RewardShaping::stop_properly_penalty_coef),
          "factor on the reward of an answer that was cut off, instead of the penalty")
        .bits_where(shapes);
}

void add_grpo_keys(Schema<RlKeys>& s) {
    s.key("grpo.num_prompts_per_step", count_kind(1), in_config(&RlConfig::prompts), "prompts of a step");
    s.key("grpo.num_generations_per_prompt", count_kind(1), in_config(&RlConfig::generations),
          "answers to each prompt: a group");
    s.key("grpo.max_num_steps", count_kind(1), in_config(&RlConfig::steps), "steps of the run").keeps_bits();
    s.key("grpo.seed", seed_kind(), in_config(&RlConfig::seed), "seed of questions, of their order and of sampling");
    s.key("grpo.normalize_rewards", flag_kind(), in_config(&RlConfig::advantage, &AdvantageOptions::normalize_rewards),
          "divide advantages of grpo by the standard deviation of the group, where it is not 0");
    s.key("grpo.use_leave_one_out_baseline", flag_kind(),
          in_config(&RlConfig::advantage, &AdvantageOptions::leave_one_out),
          "baseline and deviation of an answer leave out its own reward");
    s.key("grpo.adv_estimator.name", enum_kind<AdvantageEstimator>(advantage_estimator_names),
          in_config(&RlConfig::advantage, &AdvantageOptions::estimator), "how rewards become advantages");
    s.key("grpo.advantage_clip_low", optional_kind(number_kind(-beyond, beyond)),
          in_config(&RlConfig::advantage, &AdvantageOptions::clip_low), "least advantage");
    s.key("grpo.advantage_clip_high", optional_kind(number_kind(-beyond, beyond)),
          in_config(&RlConfig::advantage, &AdvantageOptions::clip_high), "largest advantage");
    s.key("grpo.use_dynamic_sampling", flag_kind(), in_config(&RlConfig::dynamic_sampling),
          "replace prompts whose judged answers all have the same reward (DAPO)");
    s.key("grpo.dynamic_sampling_max_gen_batches", count_kind(1), in_config(&RlConfig::most_batches),
          "largest number of batches of prompts that a step generates for that");
    s.key("grpo.batch_multiplier", number_kind(1, 1e6), in_config(&RlConfig::batch_multiplier),
          "with dynamic sampling: prompts of a batch, as a multiple of num_prompts_per_step, rounded down");
    s.key("grpo.overlong_filtering", flag_kind(), in_config(&RlConfig::overlong_filtering),
          "leave answers that were cut off out of the loss");
    s.key("grpo.seq_logprob_error_threshold", optional_kind(number_kind(1, beyond)),
          in_config(&RlConfig::seq_error_threshold),
          "the loss ignores answers whose mean exp(abs(g - p)) of rollout and training is larger");
    add_reward_keys(s);
    s.key("grpo.max_rollout_turns", count_kind(1), in_config(&RlConfig::most_turns),
          "turns of an answer that an environment continues")
        .refuses([](const RlKeys& k) {
            return k.c.most_turns > 1 && !k.c.task.has_environment()
                       ? fmt::format("{}: only an environment continues an answer; env.command is missing",
                                     k.c.most_turns)
                       : "";
        });
    const std::string async = "grpo.async_grpo.";
    const auto outlives = [](const RlKeys& k) { return k.outlives; };
    s.key(async + "enabled", flag_kind(), at(&RlKeys::outlives), "rollouts may continue over the end of a step");
    s.key(async + "max_trajectory_age_steps", count_kind(1), at(&RlKeys::async, &RlAsync::most_age),
          "answers that began more steps ago are dropped")
        .bits_where(outlives);
    s.key(async + "prompts_in_flight", count_kind(1), at(&RlKeys::async, &RlAsync::prompts_in_flight),
          "prompts whose answers are under way")
        .says("3/2 of num_prompts_per_step")
        .bits_where(outlives);
    s.key(async + "tokens_per_round", count_kind(1), at(&RlKeys::async, &RlAsync::round_tokens),
          "tokens that each answer gets before it is checked whether enough answers are complete")
        .bits_where(outlives);
    s.key("grpo.val_period", count_kind(0), in_config(&RlConfig::validation_every),
          "steps between validations; 0: none")
        .keeps_bits();
    s.key("grpo.max_val_samples", count_kind(1), in_config(&RlConfig::validation_prompts), "prompts of a validation")
        .keeps_bits();
    s.key("grpo.num_val_generations_per_prompt", count_kind(1), in_config(&RlConfig::validation_answers),
          "answers to each prompt of a validation, up to 20; with several also avg@k, pass@k and cons@k")
        .keeps_bits();
}

void add_loss_keys(Schema<RlKeys>& s) {
    const std::string l = "loss_fn.";
    using L = PolicyLossOptions;
    const auto in = [](auto member) { return in_config(&RlConfig::loss, member); };
    s.key(l + "reference_policy_kl_penalty", number_kind(0, 1e6), in(&L::kl_penalty),
          "weight of the KL term to the model at the start of the run; 0: no term and no copy of that model");
    s.key(l + "reference_policy_kl_type", enum_kind<KlEstimator>(kl_estimator_names), in(&L::kl_type),
          "estimator of that term");
    s.key(l + "ratio_clip_min", number_kind(0, 1e6), in(&L::ratio_clip_min), "the ratio is clipped below 1 minus this");
    s.key(l + "ratio_clip_max", number_kind(0, 1e6), in(&L::ratio_clip_max), "the ratio is clipped above 1 plus this");
    s.key(l + "ratio_clip_c", optional_kind(number_kind(1, 1e6)), in(&L::ratio_clip_c),
          "dual clip of negative advantages, above 1");
    s.key(l + "token_level_loss", flag_kind(), in(&L::token_level_loss),
          "mean over tokens; false: mean over answers of their means");
    s.key(l + "force_on_policy_ratio", flag_kind(), in(&L::force_on_policy_ratio), "the ratio is 1 (REINFORCE, RLOO)");
    s.key(l + "disable_ppo_ratio", flag_kind(), in(&L::disable_ppo_ratio),
          "the loss is the advantage times the log-probability, without a ratio");
    s.key(l + "sequence_level_importance_ratios", flag_kind(), in(&L::sequence_level_importance_ratios),
          "one ratio for each answer (GSPO)");
    s.key(l + "use_cispo", flag_kind(), in(&L::use_cispo), "clipped ratios as weights (CISPO)");
    s.key(l + "use_on_policy_kl_approximation", flag_kind(), in(&L::use_on_policy_kl_approximation),
          "importance weights on the KL term");
    s.key(l + "use_kl_in_reward", flag_kind(), in(&L::kl_in_reward),
          "with reinforce_plus_plus: the KL estimate is subtracted from the advantages instead of added to the loss");
    s.key(l + "use_importance_sampling_correction", flag_kind(), in(&L::importance_sampling_correction),
          "weigh tokens by exp(p - g) of training and rollout");
    s.key(l + "truncated_importance_sampling_type", enum_kind<ImportanceTruncation>(importance_truncation_names),
          in(&L::truncation), "how these weights are bounded");
    s.key(l + "truncated_importance_sampling_ratio", optional_kind(number_kind(0, beyond)), in(&L::importance_high),
          "upper bound of these weights");
    s.key(l + "truncated_importance_sampling_ratio_min", optional_kind(number_kind(0, beyond)), in(&L::importance_low),
          "lower bound of these weights");
}

void add_data_keys(Schema<RlKeys>& s) {
    using T = RlTask;
    const auto in = [](auto... members) { return in_config(&RlConfig::task, members...); };
    const auto from_rows = [](const RlKeys& k) { return !k.c.task.train.empty(); };
    const auto own_rule = [](const RlKeys& k) { return !k.c.task.has_environment(); };
    const auto runs_code = [](const RlKeys& k) { return k.c.task.reward.rule == AnswerRule::code; };
    const std::string rows = "without data.train", judged = "with env.command or env.function, which judge the answers";
    s.key("data.task", optional_kind(enum_kind<TaskKind>(task_names)), at(&RlKeys::task),
          "questions that are generated");
    s.key("data.difficulty", difficulty_kind(), in(&T::difficulty), "size of the numbers or steps of data.task")
        .needs([](const RlKeys& k) { return k.c.task.train.empty(); }, "with data.train");
    s.key("data.train", path_kind(), in(&T::train),
          "instead of data.task: JSON Lines file; its rows must be the same on resume")
        .keeps_bits();
    s.key("data.validation", path_kind(), in(&T::validation), "JSON Lines file for validation")
        .keeps_bits()
        .needs(from_rows, rows);
    s.key("data.input_key", text_kind(), in(&T::input_key), "field of a row with the question").needs(from_rows, rows);
    s.key("data.output_key", text_kind(), in(&T::output_key), "field of a row with the answer").needs(from_rows, rows);
    const auto reward = [&](auto& key) -> auto& { return key.needs(from_rows, rows).needs(own_rule, judged); };
    const auto in_reward = [=](auto... members) { return in(&T::reward, members...); };
    using A = AnswerRewardOptions;
    reward(s.key("data.reward", enum_kind<AnswerRule>(answer_rule_names), in_reward(&A::rule),
                 "how an answer is compared with that of the row"));
    reward(s.key("data.format", text_kind(), in_reward(&A::format),
                 "regular expression that a well-formed answer matches somewhere"));
    reward(s.key("data.format_share", number_kind(0, 1), in_reward(&A::format_share),
                 "share of the reward for the format"))
        .needs([](const RlKeys& k) { return !k.c.task.reward.format.empty(); }, "without data.format");
    const auto code = [&](const char* name, auto kind, const char* help, auto... members) {
        reward(s.key(std::string("data.code.") + name, kind, in_reward(&A::code, members...), help))
            .needs(runs_code, "without data.reward: code");
    };
    using Code = CodeRewardOptions;
    code("seconds", number_kind(0.01, 3600), "seconds of a run of a program", &Code::limits, &SandboxLimits::seconds);
    code("memory_mib", bytes_kind(0x1p20), "MiB of memory of a program", &Code::limits, &SandboxLimits::memory_bytes);
    code("file_mib", bytes_kind(0x1p20), "MiB of a file that a program writes", &Code::limits,
         &SandboxLimits::file_bytes);
    code("output_kib", bytes_kind(0x1p10), "KiB of output of a program", &Code::limits, &SandboxLimits::output_bytes);
    code("partial", flag_kind(), "reward the share of tests that pass; false: all or nothing", &Code::partial);
    s.key("data.prompt", lines_kind(), in(&T::prompt), "text around the question, which takes the place of {}");
    s.key("data.chat", flag_kind(), in(&T::chat),
          "the prompt is a user message of the model's chat template; false: plain text");
    const auto judges = [](const RlKeys& k) { return !k.c.task.command.empty(); };
    s.key("env.command", command_kind(), in(&T::command),
          "program that judges the answers instead of the rule of the task");
    s.key("env.processes", count_kind(1), in(&T::processes), "processes of that program")
        .needs(judges, "without env.command");
    s.key("env.timeout_seconds", number_kind(0.001, 1e6), in(&T::timeout_seconds), "longest time for one judgement")
        .needs(judges, "without env.command");
    s.key("env.function", text_kind(), in(&T::function),
          "name of a function of the program that calls nibble as a library; the function judges the answers")
        .needs([](const RlKeys& k) { return k.c.task.command.empty(); }, "with env.command, which judges the answers");
}

void add_run_keys(Schema<RlKeys>& s) {
    s.key("output", path_kind(), in_config(&RlConfig::output), "folder of the run, as -o").keeps_bits();
    s.key("checkpointing.enabled", flag_kind(), at(&RlKeys::saves),
          "write checkpoints, also at the end and after an error")
        .keeps_bits();
    s.key("checkpointing.save_period", count_kind(0), in_config(&RlConfig::saving, &TrainSaving::every),
          "steps between checkpoints; 0: only at the end")
        .keeps_bits();
    s.key("checkpointing.keep_top_k", count_kind(1), in_config(&RlConfig::saving, &TrainSaving::keep),
          "number of newest checkpoints to keep")
        .keeps_bits();
    s.key("checkpointing.checkpoint_must_save_by", time_limit_kind(), in_config(&RlConfig::must_save_by),
          "time after the start: the run saves and ends (exit status 1) before a step that would end later")
        .keeps_bits()
        .needs([](const RlKeys& k) { return k.saves || k.c.must_save_by == 0; },
               "with enabled: false, which saves nothing");
    s.key("export.format",
          word_kind<Format>(
              {{"nvfp4", Format::nvfp4}, {"mxfp8", Format::mxfp8}, {"fp8_block128", Format::fp8_block128}}),
          in_config(&RlConfig::export_format), "also write the policy quantized, to serve it")
        .keeps_bits();
}

Schema<RlKeys> make_rl_schema() {
    Schema<RlKeys> s;
    add_policy_keys(s);
    add_generation_keys(s);
    add_grpo_keys(s);
    add_loss_keys(s);
    add_data_keys(s);
    add_run_keys(s);
    return s;
}

}  // namespace

const Schema<RlKeys>& rl_schema() {
    static const Schema<RlKeys> schema = make_rl_schema();
    return schema;
}

std::vector<KeyText> rl_keys() {
    std::vector<KeyText> keys = rl_schema().reference();
    // The switches of a precision are documented in train_schema().
    std::erase_if(keys, [](const KeyText& k) {
        return k.name.find("precision.") != k.name.npos && !k.name.ends_with(".recipe");
    });
    for (KeyText& k : keys) {
        if (!k.name.ends_with(".precision.recipe")) continue;
        const bool rollouts = k.name.starts_with("policy.generation.");
        k.name.resize(k.name.size() - std::string_view(".recipe").size());
        k.kind = "recipe of training, or a map of it and its switches";
        k.help = rollouts ? "precision of rollouts alone" : "precision of rollouts and updates";
        if (rollouts) k.usual = "policy.precision";
    }
    return keys;
}

}  // namespace nibble
