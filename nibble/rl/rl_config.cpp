#include "rl/rl_config.h"

#include "base/json.h"
#include "base/mapped_file.h"
#include "io/yaml_fields.h"
#include "run/deadline.h"

#include <nlohmann/json.hpp>

#include <array>

namespace nibble {
namespace {

Json to_json(const YamlNode& node) {
    switch (node.kind) {
        case YamlNode::Kind::null:
            break;
        case YamlNode::Kind::scalar:
            return node.text;
        case YamlNode::Kind::list: {
            Json list = Json::array();
            for (const YamlNode& item : node.items) list.push_back(to_json(item));
            return list;
        }
        case YamlNode::Kind::map: {
            Json map = Json::object();
            for (const YamlEntry& entry : node.entries) map[entry.key] = to_json(entry.value);
            return map;
        }
    }
    return nullptr;
}

// What may change when a run goes on: where it writes, how long it is, what it looks at.
std::string identity_of(const YamlNode& root) {
    Json json = to_json(root);
    for (const char* key : {"output", "checkpointing", "export"}) json.erase(key);
    if (json.contains("grpo") && json["grpo"].is_object())
        for (const char* key : {"max_num_steps", "val_period", "max_val_samples", "num_val_generations_per_prompt"})
            json["grpo"].erase(key);
    if (json.contains("data") && json["data"].is_object()) json["data"].erase("validation");
    return json.dump();
}

// NeMo RL's names of switches, beside ours.
constexpr std::array switch_names{std::pair{"num_first_layers_in_bf16", "first_bf16"},
                                  std::pair{"num_last_layers_in_bf16", "last_bf16"},
                                  std::pair{"pow2_weight_scaling_factors", "power_of_two"}};

// The switches under our names. `beside`: the map that has `precision`, and may have some of them under NeMo RL's
// names; null: none.
Result<YamlNode> with_our_names(const YamlNode& node, const std::string& name, const YamlNode* beside) {
    YamlNode map = node;
    if (!node.is_map()) {
        map.kind = YamlNode::Kind::map;
        map.entries = {{"recipe", node}};
    }
    for (const auto& [theirs, ours] : switch_names) {
        std::vector<YamlEntry> given;
        for (const YamlEntry& entry : map.entries)
            if (entry.key == theirs || entry.key == ours) given.push_back({ours, entry.value});
        std::erase_if(map.entries, [&theirs = theirs, &ours = ours](const YamlEntry& e) {
            return e.key == theirs || e.key == ours;
        });
        if (const YamlNode* value = beside ? beside->find(theirs) : nullptr) given.push_back({ours, *value});
        if (given.size() > 1)
            return fail("{}: {}: {} and {} are one switch, given twice", given[1].value.where(), name, theirs, ours);
        if (!given.empty()) map.entries.push_back(given[0]);
    }
    return map.entries.size() == 1 && !node.is_map() ? node : map;
}

// A recipe of training (train/train_precision.h), or NeMo RL's name of one. What rollouts cannot follow is refused:
// scales and directions that are renewed within a step, phases of a run.
Result<TrainPrecision> read_precision(const YamlNode& given, const std::string& name, const YamlNode* beside) {
    NIBBLE_TRY(const YamlNode node, with_our_names(given, name, beside));
    if (node.kind == YamlNode::Kind::scalar && node.text == "bfloat16")
        return TrainPrecision{.recipe = TrainRecipe::bf16};
    if (node.kind == YamlNode::Kind::scalar && node.text == "float32")
        return TrainPrecision{.recipe = TrainRecipe::fp32};
    NIBBLE_TRY(const TrainPrecision precision, read_train_precision(node, name));
    if (precision.recipe == TrainRecipe::fp8_delayed || precision.recipe == TrainRecipe::nibble_nvfp4 ||
        precision.late_forward)
        return fail("{}: {} {}: not built yet for rollouts", node.where(), name,
                    train_precision_json(precision).dump());
    return precision;
}

// NeMo RL's names, and ours.
Result<KvFormat> kv_cache_from_name(std::string_view name) {
    if (name == "auto" || name == "bf16" || name == "bfloat16") return KvFormat::none;
    if (name == "fp8" || name == "fp8_e4m3") return KvFormat::fp8;
    if (name == "fp8_page") return KvFormat::fp8_page;
    return fail("unknown KV cache '{}'; choices: auto, bf16, fp8, fp8_e4m3, fp8_page", name);
}

Result<bool> fp8_queries_from_name(std::string_view name) {
    if (name == "auto" || name == "bf16" || name == "bfloat16") return false;
    if (name == "fp8" || name == "fp8_e4m3") return true;
    return fail("unknown precision of queries '{}'; choices: auto, bf16, fp8, fp8_e4m3", name);
}

Result<Format> export_format_from_name(std::string_view name) {
    for (const Format format : {Format::nvfp4, Format::mxfp8, Format::fp8_block128})
        if (name == format_name(format)) return format;
    return fail("unknown export format '{}'; choices: nvfp4, mxfp8, fp8_block128", name);
}

void read_seed(YamlFields& fields, uint64_t& seed) {
    auto value = static_cast<int64_t>(seed);
    fields.count("seed", 0, value);
    seed = static_cast<uint64_t>(value);
}

template <class T, class Item>
void read_list(YamlFields& fields, std::string_view key, std::vector<T>& to, const Item& item) {
    fields.read(key, [&](const YamlNode& node, const std::string& name) -> Status {
        to.clear();
        if (node.is_null()) return Ok{};
        if (!node.is_list()) return fail("{}: {} must be a list", node.where(), name);
        for (const YamlNode& element : node.items) {
            NIBBLE_TRY(T value, item(element, name));
            to.push_back(std::move(value));
        }
        return Ok{};
    });
}

void read_rewards(YamlFields& grpo, RlConfig& c) {
    grpo.map("reward_scaling", {"enabled", "source_min", "source_max", "target_min", "target_max"}, [&](YamlFields& m) {
        bool enabled = false;
        RewardScaling s;
        m.flag("enabled", enabled);
        m.number("source_min", -1e30, 1e30, s.source_min);
        m.number("source_max", -1e30, 1e30, s.source_max);
        m.number("target_min", -1e30, 1e30, s.target_min);
        m.number("target_max", -1e30, 1e30, s.target_max);
        if (enabled) c.scaling = s;
    });
    grpo.map("reward_shaping",
             {"enabled", "overlong_buffer_length", "overlong_buffer_penalty", "max_response_length",
              "stop_properly_penalty_coef"},
             [&](YamlFields& m) {
                 bool enabled = false;
                 RewardShaping s;
                 m.flag("enabled", enabled);
                 m.count("overlong_buffer_length", 1, s.overlong_buffer_length);
                 m.number("overlong_buffer_penalty", 0, 1e30, s.overlong_buffer_penalty);
                 m.count("max_response_length", 1, s.max_response_length);
                 m.number("stop_properly_penalty_coef", 0, 1, s.stop_properly_penalty_coef);
                 s.overlong = !s.stop_properly_penalty_coef;  // as in NeMo RL, one or the other
                 if (s.max_response_length == 0) s.max_response_length = c.length;
                 if (enabled) c.shaping = s;
             });
}

void read_async(YamlFields& grpo, RlConfig& c) {
    grpo.map("async_grpo", {"enabled", "max_trajectory_age_steps", "prompts_in_flight", "tokens_per_round"},
             [&](YamlFields& m) {
                 bool enabled = false;
                 RlAsync a;
                 m.flag("enabled", enabled);
                 m.count("max_trajectory_age_steps", 1, a.most_age);
                 m.count("prompts_in_flight", 1, a.prompts_in_flight);
                 m.count("tokens_per_round", 1, a.round_tokens);
                 if (a.prompts_in_flight == 0) a.prompts_in_flight = c.prompts + (c.prompts + 1) / 2;
                 if (enabled) c.async = a;
             });
}

void read_grpo(YamlFields& top, RlConfig& c) {
    top.map("grpo",
            {"num_prompts_per_step",
             "num_generations_per_prompt",
             "max_num_steps",
             "seed",
             "normalize_rewards",
             "use_leave_one_out_baseline",
             "adv_estimator",
             "advantage_clip_low",
             "advantage_clip_high",
             "use_dynamic_sampling",
             "dynamic_sampling_max_gen_batches",
             "batch_multiplier",
             "overlong_filtering",
             "seq_logprob_error_threshold",
             "reward_scaling",
             "reward_shaping",
             "max_rollout_turns",
             "async_grpo",
             "val_period",
             "max_val_samples",
             "num_val_generations_per_prompt"},
            [&](YamlFields& m) {
                m.count("num_prompts_per_step", 1, c.prompts);
                m.count("num_generations_per_prompt", 1, c.generations);
                m.count("max_num_steps", 1, c.steps);
                read_seed(m, c.seed);
                m.flag("normalize_rewards", c.advantage.normalize_rewards);
                m.flag("use_leave_one_out_baseline", c.advantage.leave_one_out);
                m.map("adv_estimator", {"name"},
                      [&](YamlFields& e) { e.named("name", advantage_estimator_from_name, c.advantage.estimator); });
                m.number("advantage_clip_low", -1e30, 1e30, c.advantage.clip_low);
                m.number("advantage_clip_high", -1e30, 1e30, c.advantage.clip_high);
                m.flag("use_dynamic_sampling", c.dynamic_sampling);
                m.count("dynamic_sampling_max_gen_batches", 1, c.most_batches);
                m.number("batch_multiplier", 1, 1e6, c.batch_multiplier);
                m.flag("overlong_filtering", c.overlong_filtering);
                m.number("seq_logprob_error_threshold", 1, 1e30, c.seq_error_threshold);
                read_rewards(m, c);
                m.count("max_rollout_turns", 1, c.most_turns);
                read_async(m, c);
                m.count("val_period", 0, c.validation_every);
                m.count("max_val_samples", 1, c.validation_prompts);
                m.count("num_val_generations_per_prompt", 1, c.validation_answers);
            });
}

void read_loss(YamlFields& top, PolicyLossOptions& o) {
    top.map("loss_fn",
            {"reference_policy_kl_penalty", "reference_policy_kl_type", "ratio_clip_min", "ratio_clip_max",
             "ratio_clip_c", "token_level_loss", "force_on_policy_ratio", "disable_ppo_ratio",
             "sequence_level_importance_ratios", "use_cispo", "use_on_policy_kl_approximation", "use_kl_in_reward",
             "use_importance_sampling_correction", "truncated_importance_sampling_type",
             "truncated_importance_sampling_ratio", "truncated_importance_sampling_ratio_min"},
            [&](YamlFields& m) {
                m.number("reference_policy_kl_penalty", 0, 1e6, o.kl_penalty);
                m.named("reference_policy_kl_type", kl_estimator_from_name, o.kl_type);
                m.number("ratio_clip_min", 0, 1e6, o.ratio_clip_min);
                m.number("ratio_clip_max", 0, 1e6, o.ratio_clip_max);
                m.number("ratio_clip_c", 1, 1e6, o.ratio_clip_c);
                m.flag("token_level_loss", o.token_level_loss);
                m.flag("force_on_policy_ratio", o.force_on_policy_ratio);
                m.flag("disable_ppo_ratio", o.disable_ppo_ratio);
                m.flag("sequence_level_importance_ratios", o.sequence_level_importance_ratios);
                m.flag("use_cispo", o.use_cispo);
                m.flag("use_on_policy_kl_approximation", o.use_on_policy_kl_approximation);
                m.flag("use_kl_in_reward", o.kl_in_reward);
                m.flag("use_importance_sampling_correction", o.importance_sampling_correction);
                m.named("truncated_importance_sampling_type", importance_truncation_from_name, o.truncation);
                m.number("truncated_importance_sampling_ratio", 0, 1e30, o.importance_high);
                m.number("truncated_importance_sampling_ratio_min", 0, 1e30, o.importance_low);
            });
}

// Keys of the generation that are part of another one, which is not there or has another value.
Status check_generation(const YamlNode& node, const std::string& name, const RlGeneration& g) {
    if (g.cache.format != KvFormat::fp8)
        for (const std::string_view key : {"kv_cache_percentile", "kv_cache_margin"})
            if (node.find(key)) return fail("{}: {}.{} is of kv_cache_dtype: fp8", node.where(), name, key);
    if (!g.precision)
        for (const auto& [theirs, ours] : switch_names)
            if (node.find(theirs))
                return fail("{}: {}.{} is of {}.precision; policy.precision has it as {}", node.where(), name, theirs,
                            name, ours);
    return Ok{};
}

void read_generation(YamlFields& policy, RlGeneration& g) {
    const YamlNode* generation = nullptr;
    policy.read("generation", [&](const YamlNode& node, const std::string&) -> Status {
        generation = &node;
        return Ok{};
    });
    policy.map("generation",
               {"max_new_tokens", "temperature", "val_temperature", "top_p", "val_top_p", "top_k", "stop_token_ids",
                "stop_strings", "precision", "kv_cache_dtype", "kv_cache_percentile", "kv_cache_margin", "query_dtype",
                "num_first_layers_in_bf16", "num_last_layers_in_bf16", "pow2_weight_scaling_factors"},
               [&](YamlFields& m) {
                   m.read("precision", [&](const YamlNode& node, const std::string& name) -> Status {
                       NIBBLE_TRY(g.precision, read_precision(node, name, generation));
                       return Ok{};
                   });
                   m.named("kv_cache_dtype", kv_cache_from_name, g.cache.format);
                   m.number("kv_cache_percentile", 0, 100, g.cache.calibration.percentile);
                   m.number("kv_cache_margin", 1e-3, 1000, g.cache.calibration.margin);
                   m.named("query_dtype", fp8_queries_from_name, g.cache.queries);
                   g.cache.mirrored = !g.precision;
                   m.count("max_new_tokens", 1, g.most_tokens);
                   m.number("temperature", 1e-3, 1000, g.temperature);
                   m.number("val_temperature", 0, 1000, g.validation_temperature);
                   m.number("top_p", 1e-6, 1, g.top_p);
                   m.number("val_top_p", 1e-6, 1, g.validation_top_p);
                   m.read("top_k", [&](const YamlNode& node, const std::string& name) -> Status {
                       g.top_k = 0;
                       if (node.is_null()) return Ok{};
                       NIBBLE_TRY(g.top_k, as_int(node, name));
                       if (g.top_k == -1) g.top_k = 0;  // as vLLM says off
                       if (g.top_k < 0) return fail("{}: {} {}: must be at least 0", node.where(), name, g.top_k);
                       return Ok{};
                   });
                   read_list(m, "stop_token_ids", g.stop_tokens,
                             [](const YamlNode& n, const std::string& what) { return as_int(n, what); });
                   read_list(m, "stop_strings", g.stop_texts,
                             [](const YamlNode& n, const std::string& what) -> Result<std::string> {
                                 if (n.text.empty()) return as_text(n, what);
                                 return as_lines(n, what);
                             });
               });
    policy.read("generation",
                [&](const YamlNode& node, const std::string& name) { return check_generation(node, name, g); });
}

void read_policy(YamlFields& top, RlConfig& c) {
    top.map("policy",
            {"model_name", "precision", "train_global_batch_size", "max_total_sequence_length", "max_grad_norm",
             "optimizer", "generation", "sequence_packing"},
            [&](YamlFields& m) {
                m.path("model_name", c.model);
                m.read("precision", [&](const YamlNode& node, const std::string& name) -> Status {
                    NIBBLE_TRY(c.precision, read_precision(node, name, nullptr));
                    return Ok{};
                });
                m.count("train_global_batch_size", 1, c.train_batch);
                m.count("max_total_sequence_length", 2, c.length);
                m.number("max_grad_norm", 0, 1e30, c.optimizer.clip);
                m.map("optimizer", {"lr", "weight_decay", "adam_beta1", "adam_beta2", "adam_eps", "lr_warmup_iters"},
                      [&](YamlFields& o) {
                          o.number("lr", 0, 10, c.optimizer.learning_rate);
                          o.number("weight_decay", 0, 100, c.optimizer.weight_decay);
                          o.number("adam_beta1", 0, 1 - 1e-9, c.optimizer.beta1);
                          o.number("adam_beta2", 0, 1 - 1e-9, c.optimizer.beta2);
                          o.number("adam_eps", 1e-30, 1, c.optimizer.epsilon);
                          o.count("lr_warmup_iters", 0, c.warmup);
                      });
                m.map("sequence_packing", {"train_mb_tokens"},
                      [&](YamlFields& p) { p.count("train_mb_tokens", 0, c.row_tokens); });
                read_generation(m, c.generation);
            });
}

// Keys that say nothing without an environment.
Status check_environment(const YamlNode& root, const RlConfig& c) {
    if (!c.task.command.empty()) return Ok{};
    if (const YamlNode* env = root.find("env"))
        for (const std::string_view key : {"command", "processes", "timeout_seconds"})
            if (const YamlNode* node = env->find(key); node && !node->is_null())
                return key == "command" ? fail("env.command: names no program")
                                        : fail("env.{} is of env.command, which is missing", key);
    if (c.most_turns > 1)
        return fail("grpo.max_rollout_turns {}: no task talks back but an environment; env.command is missing",
                    c.most_turns);
    return Ok{};
}

// Keys that say nothing beside the others.
Status check_data(const YamlNode& root, const RlTask& t) {
    const YamlNode* data = root.find("data");
    const auto has = [&](std::string_view key) { return data && data->find(key); };
    if (!has("task") && !has("train")) return fail("'data.task' or 'data.train' is missing");
    if (has("task") && has("train")) return fail("data.task and data.train exclude each other");
    if (has("train"))
        if (has("difficulty")) return fail("data.difficulty is of data.task; data.train has none");
    if (has("task"))
        for (const std::string_view key :
             {"validation", "input_key", "output_key", "reward", "format", "format_share", "code"})
            if (has(key)) return fail("data.{} is of data.train; data.task has none", key);
    if (!t.command.empty())
        for (const std::string_view key : {"reward", "format", "format_share", "code"})
            if (has(key)) return fail("data.{} and env.command exclude each other: the environment judges", key);
    if (has("code") && t.reward.rule != AnswerRule::code) return fail("data.code is of data.reward: code");
    if (has("format_share") && !has("format")) return fail("data.format_share needs data.format");
    return Ok{};
}

void read_code(YamlFields& data, CodeRewardOptions& o) {
    data.map("code", {"seconds", "memory_mib", "file_mib", "output_kib", "partial"}, [&](YamlFields& m) {
        m.number("seconds", 0.01, 3600, o.limits.seconds);
        const auto bytes = [&](std::string_view key, double unit, int64_t& to) {
            double units = static_cast<double>(to) / unit;
            m.number(key, 1, 1 << 20, units);
            to = static_cast<int64_t>(units * unit);
        };
        bytes("memory_mib", 0x1p20, o.limits.memory_bytes);
        bytes("file_mib", 0x1p20, o.limits.file_bytes);
        bytes("output_kib", 0x1p10, o.limits.output_bytes);
        m.flag("partial", o.partial);
    });
}

void read_task(YamlFields& top, RlTask& t) {
    top.map("data",
            {"task", "difficulty", "train", "validation", "input_key", "output_key", "reward", "format", "format_share",
             "code", "prompt", "chat"},
            [&](YamlFields& m) {
                m.named("task", task_from_name, t.kind);
                m.path("train", t.train);
                m.path("validation", t.validation);
                m.text("input_key", t.input_key);
                m.text("output_key", t.output_key);
                m.named("reward", answer_rule_from_name, t.reward.rule);
                m.text("format", t.reward.format);
                m.number("format_share", 0, 1, t.reward.format_share);
                read_code(m, t.reward.code);
                int64_t difficulty = t.difficulty;
                m.count("difficulty", 1, difficulty);
                t.difficulty = static_cast<int>(difficulty);
                m.read("prompt", [&](const YamlNode& node, const std::string& name) -> Status {
                    NIBBLE_TRY(t.prompt, as_lines(node, name));
                    return Ok{};
                });
                m.flag("chat", t.chat);
            });
    top.map("env", {"command", "processes", "timeout_seconds"}, [&](YamlFields& m) {
        read_list(m, "command", t.command, [](const YamlNode& n, const std::string& what) { return as_text(n, what); });
        m.count("processes", 1, t.processes);
        m.number("timeout_seconds", 0.001, 1e6, t.timeout_seconds);
    });
}

}  // namespace

Status check(const RlConfig& c) {
    if (c.validation_answers > 20)
        return fail("grpo.num_val_generations_per_prompt {}: at most 20, whose subsets are counted",
                    c.validation_answers);
    NIBBLE_CHECK(check(c.loss));
    NIBBLE_CHECK(check(c.advantage));
    NIBBLE_CHECK(check(c.generation.cache));
    if (c.generation.precision &&
        (c.generation.precision->recipe == TrainRecipe::fp32) != (c.precision.recipe == TrainRecipe::fp32))
        return fail("policy.generation.precision: FP32 on one side alone is not built");
    if (c.generation.precision && c.generation.precision->stored_inputs)
        return fail(
            "policy.generation.precision: scales of stored inputs follow from updates in the same precision; use "
            "policy.precision");
    if (c.scaling) NIBBLE_CHECK(check(*c.scaling));
    if (c.shaping) NIBBLE_CHECK(check(*c.shaping));
    if (c.generations == 1 && c.advantage.estimator != AdvantageEstimator::reward && !c.loss.kl_in_reward)
        return fail(
            "grpo.num_generations_per_prompt 1: nothing is learned from one answer beside none; at least 2, or "
            "grpo.adv_estimator.name: reward");
    if (c.generations == 1 && c.dynamic_sampling)
        return fail("grpo.use_dynamic_sampling: needs grpo.num_generations_per_prompt of at least 2");
    if (c.batch_multiplier != 1 && !c.dynamic_sampling)
        return fail("grpo.batch_multiplier {}: needs grpo.use_dynamic_sampling: true", c.batch_multiplier);
    const int64_t answers = c.prompts * c.generations, batch = c.train_batch > 0 ? c.train_batch : answers;
    if (answers % batch != 0)
        return fail("policy.train_global_batch_size {} does not divide the {} answers of a step", batch, answers);
    if (c.loss.force_on_policy_ratio && batch != answers)
        return fail("loss_fn.force_on_policy_ratio needs policy.train_global_batch_size = {}, all answers of a step",
                    answers);
    if (c.generation.sampling().filters() && c.loss.kl_penalty > 0)
        return fail("policy.generation.top_p and top_k need loss_fn.reference_policy_kl_penalty: 0");
    if (c.loss.kl_in_reward && c.advantage.estimator != AdvantageEstimator::reinforce_plus_plus)
        return fail("loss_fn.use_kl_in_reward: needs grpo.adv_estimator.name: reinforce_plus_plus");
    if (c.loss.kl_in_reward && c.loss.force_on_policy_ratio)
        return fail("loss_fn.use_kl_in_reward and loss_fn.force_on_policy_ratio exclude each other");
    if (c.async) {
        if (!c.loss.importance_sampling_correction)
            return fail("grpo.async_grpo: old tokens need loss_fn.use_importance_sampling_correction: true");
        if (c.loss.force_on_policy_ratio)
            return fail("grpo.async_grpo and loss_fn.force_on_policy_ratio exclude each other");
        if (c.dynamic_sampling) return fail("grpo.async_grpo and grpo.use_dynamic_sampling exclude each other");
        if (c.async->prompts_in_flight < c.prompts)
            return fail("grpo.async_grpo.prompts_in_flight {}: at least num_prompts_per_step {}",
                        c.async->prompts_in_flight, c.prompts);
    }
    if (c.generation.most_tokens >= c.length)
        return fail("policy.generation.max_new_tokens {} leaves no room for a prompt in max_total_sequence_length {}",
                    c.generation.most_tokens, c.length);
    if (c.task.difficulty < 1 || c.task.difficulty > 6)
        return fail("data.difficulty {}: must be 1 to 6", c.task.difficulty);
    if (!c.task.train.empty() && c.validation_every > 0 && c.task.validation.empty())
        return fail("grpo.val_period {}: data.validation is missing", c.validation_every);
    NIBBLE_CHECK(check(c.task.reward).within("data.format"));
    if (c.task.prompt.find("{}") == c.task.prompt.npos) return fail("data.prompt: has no {{}} for the question");
    return Ok{};
}

Result<RlConfig> parse_rl_config(std::string_view yaml, std::string_view name) {
    const std::string file(name);
    NIBBLE_TRY(const auto documents, parse_yaml(yaml, file));
    if (documents.size() != 1 || !documents[0].is_map()) return fail("{}: a config is one map of keys", file);
    const YamlNode& root = documents[0];
    NIBBLE_CHECK(check_keys(root, "the config",
                            {"output", "policy", "grpo", "loss_fn", "data", "env", "checkpointing", "export"}));
    RlConfig c;
    YamlFields top(root, "");
    top.path("output", c.output);
    read_policy(top, c);  // first: defaults of others follow from its lengths
    read_grpo(top, c);
    read_loss(top, c.loss);
    read_task(top, c.task);
    top.map("checkpointing", {"enabled", "save_period", "keep_top_k", "checkpoint_must_save_by"}, [&](YamlFields& m) {
        bool enabled = true;
        m.flag("enabled", enabled);
        m.count("save_period", 0, c.saving.every);
        m.count("keep_top_k", 1, c.saving.keep);
        if (!enabled) c.saving = {.every = 0, .keep = 0};
        m.read("checkpoint_must_save_by", [&](const YamlNode& node, const std::string& what) -> Status {
            if (node.is_null()) return Ok{};
            NIBBLE_TRY(const std::string text, as_text(node, what));
            NIBBLE_TRY(c.must_save_by, seconds_of_limit(text).within(node.where() + ": " + what));
            if (!enabled) return fail("{}: {} beside enabled: false, which saves nothing", node.where(), what);
            return Ok{};
        });
    });
    top.map("export", {"format"}, [&](YamlFields& m) { m.named("format", export_format_from_name, c.export_format); });
    NIBBLE_CHECK(top.status());
    if (c.model.empty()) return fail("{}: 'policy.model_name' is missing", file);
    NIBBLE_CHECK(check_data(root, c.task).within(file));
    NIBBLE_CHECK(check_environment(root, c).within(file));
    NIBBLE_CHECK(check(c).within(file));
    c.identity = identity_of(root);
    return c;
}

Result<RlConfig> read_rl_config(const std::filesystem::path& file) {
    NIBBLE_TRY(const std::string text, read_text_file(file, max_yaml_bytes));
    return parse_rl_config(text, file.string());
}

}  // namespace nibble
