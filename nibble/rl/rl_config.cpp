#include "rl/rl_config.h"

#include "base/json.h"
#include "base/mapped_file.h"
#include "rl/rl_keys.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace nibble {
namespace {

// Returns the map with nibble's names of the switches. `parent` is the parent map of `precision`, which may
// have some switches under NeMo RL's names; null: none.
Result<YamlNode> with_our_names(const YamlNode& node, const std::string& name, const YamlNode* parent) {
    YamlNode map = node;
    if (!node.is_map()) {
        map.kind = YamlNode::Kind::map;
        map.entries = {{"recipe", node}};
    }
    for (const auto& [theirs, ours] : rl_switch_names) {
        std::vector<YamlEntry> given;
        for (const YamlEntry& entry : map.entries)
            if (entry.key == theirs || entry.key == ours) given.push_back({ours, entry.value});
        std::erase_if(map.entries, [&theirs = theirs, &ours = ours](const YamlEntry& e) {
            return e.key == theirs || e.key == ours;
        });
        if (const YamlNode* value = parent ? parent->find(theirs) : nullptr) given.push_back({ours, *value});
        if (given.size() > 1)
            return fail("{}: {}: {} and {} are one switch, given twice", given[1].value.where(), name, theirs, ours);
        if (!given.empty()) map.entries.push_back(given[0]);
    }
    return map.entries.size() == 1 && !node.is_map() ? node : map;
}

// Moves switches with NeMo RL's names, including those next to generation.precision, to the maps of the precisions.
Status take_nemo_names(YamlNode& root) {
    YamlNode* policy = root.find("policy");
    if (!policy || !policy->is_map()) return Ok{};
    if (YamlNode* precision = policy->find("precision")) {
        NIBBLE_TRY(*precision, with_our_names(*precision, "policy.precision", nullptr));
    }
    YamlNode* generation = policy->find("generation");
    YamlNode* precision = generation && generation->is_map() ? generation->find("precision") : nullptr;
    if (!precision) return Ok{};
    NIBBLE_TRY(*precision, with_our_names(*precision, "policy.generation.precision", generation));
    std::erase_if(generation->entries, [](const YamlEntry& e) {
        return std::ranges::any_of(rl_switch_names, [&](const auto& name) { return e.key == name.first; });
    });
    return Ok{};
}

RlConfig config_of(RlKeys k, const GivenKeys& given) {
    RlConfig c = std::move(k.c);
    if (given.has_group("policy.generation.precision")) c.generation.precision = k.rollouts;
    c.generation.cache.mirrored = !c.generation.precision;
    if (k.task) c.task.kind = *k.task;
    k.shaping.overlong = !k.shaping.stop_properly_penalty_coef;  // NeMo RL applies only one of the two
    if (k.shaping.max_response_length == 0) k.shaping.max_response_length = c.length;
    if (k.async.prompts_in_flight == 0) k.async.prompts_in_flight = c.prompts + (c.prompts + 1) / 2;
    if (k.scales) c.scaling = k.scaling;
    if (k.shapes) c.shaping = k.shaping;
    if (k.outlives) c.async = k.async;
    if (!k.saves) c.saving = {.every = 0, .keep = 0};
    return c;
}

RlKeys keys_of(const RlConfig& c) {
    RlKeys k{.c = c, .scales = c.scaling.has_value(), .shapes = c.shaping.has_value(), .outlives = c.async.has_value()};
    if (c.task.train.empty()) k.task = c.task.kind;
    if (c.scaling) k.scaling = *c.scaling;
    if (c.shaping) k.shaping = *c.shaping;
    if (c.async) k.async = *c.async;
    if (c.generation.precision) k.rollouts = *c.generation.precision;
    return k;
}

// Refuses precisions that rollouts cannot use: their scales or directions change within a step, or they have phases.
Status check_followed(const TrainPrecision& p, std::string_view key) {
    if (p.recipe != TrainRecipe::fp8_delayed && p.recipe != TrainRecipe::nibble_nvfp4 && !p.late_forward) return Ok{};
    return fail("{} {}: not supported yet for rollouts", key, train_precision_json(p).dump());
}

Status check_questions(const GivenKeys& given) {
    if (!given.has("data.task") && !given.has("data.train")) return fail("'data.task' or 'data.train' is missing");
    if (given.has("data.task") && given.has("data.train")) return fail("data.task and data.train exclude each other");
    return Ok{};
}

}  // namespace

Status check(const RlConfig& c) {
    if (c.validation_answers > 20)
        return fail("grpo.num_val_generations_per_prompt {}: must be at most 20, because all subsets are counted",
                    c.validation_answers);
    NIBBLE_CHECK(check_followed(c.precision, "policy.precision"));
    if (c.generation.precision) NIBBLE_CHECK(check_followed(*c.generation.precision, "policy.generation.precision"));
    NIBBLE_CHECK(check(c.loss));
    NIBBLE_CHECK(check(c.advantage));
    NIBBLE_CHECK(check(c.generation.cache));
    if (c.generation.precision &&
        (c.generation.precision->recipe == TrainRecipe::fp32) != (c.precision.recipe == TrainRecipe::fp32))
        return fail("policy.generation.precision: FP32 for only one of rollouts and updates is not supported");
    if (c.generation.precision && c.generation.precision->stored_inputs)
        return fail(
            "policy.generation.precision: stored scales of inputs need updates in the same precision; use "
            "policy.precision");
    if (c.scaling) NIBBLE_CHECK(check(*c.scaling));
    if (c.shaping) NIBBLE_CHECK(check(*c.shaping));
    if (c.generations == 1 && c.advantage.estimator != AdvantageEstimator::reward && !c.loss.kl_in_reward)
        return fail(
            "grpo.num_generations_per_prompt 1: a single answer has no other answers to compare with; use at least 2, "
            "or grpo.adv_estimator.name: reward");
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
            return fail(
                "grpo.async_grpo: tokens of older weights need loss_fn.use_importance_sampling_correction: true");
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
    if (!c.task.train.empty() && c.validation_every > 0 && c.task.validation.empty())
        return fail("grpo.val_period {}: data.validation is missing", c.validation_every);
    NIBBLE_CHECK(check(c.task.reward).within("data.format"));
    if (c.task.prompt.find("{}") == c.task.prompt.npos) return fail("data.prompt: has no {{}} for the question");
    return Ok{};
}

Result<RlConfig> parse_rl_config(std::string_view yaml, std::string_view name,
                                 const std::vector<KeyOverride>& overrides) {
    const std::string file(name);
    NIBBLE_TRY(YamlNode root, parse_config_map(yaml, file));
    NIBBLE_CHECK(rl_schema().set(root, overrides));
    NIBBLE_CHECK(take_nemo_names(root));
    RlKeys keys;
    NIBBLE_TRY(const GivenKeys given, rl_schema().read(root, keys));
    NIBBLE_CHECK(check_questions(given).within(file));
    const RlConfig c = config_of(std::move(keys), given);
    if (c.model.empty()) return fail("{}: 'policy.model_name' is missing", file);
    NIBBLE_CHECK(check(c).within(file));
    return c;
}

Result<RlConfig> read_rl_config(const std::filesystem::path& file, const std::vector<KeyOverride>& overrides) {
    std::error_code ignored;
    if (std::filesystem::is_directory(file, ignored))
        return fail(
            "{}: is a folder; give a YAML file that says 'policy.model_name: {}' and which questions to answer "
            "(docs/topics/rl.md)",
            file.string(), file.string());
    NIBBLE_TRY(const std::string text, read_text_file(file, max_yaml_bytes));
    return parse_rl_config(text, file.string(), overrides);
}

Json rl_identity(const RlConfig& c) {
    Json json = rl_schema().identity(keys_of(c));
    if (!c.generation.precision) json["policy"]["generation"].erase("precision");
    return json;
}

Result<Json> stored_rl_identity(const Json& stored) {
    YamlNode root = yaml_from_json(stored, "stored config");
    NIBBLE_CHECK(take_nemo_names(root));
    RlKeys keys;
    NIBBLE_TRY(const GivenKeys given, rl_schema().read_stored(root, keys));
    return rl_identity(config_of(std::move(keys), given));
}

}  // namespace nibble
