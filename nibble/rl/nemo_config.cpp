#include "rl/nemo_config.h"

#include "io/yaml.h"
#include "rl/nemo_keys.h"
#include "rl/nemo_yaml.h"
#include "rl/rl_config.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <optional>

namespace nibble {
namespace {

namespace fs = std::filesystem;

struct Leaf {
    std::string key;
    const YamlNode* node;
    bool used = false;
};

void collect(const YamlNode& node, const std::string& key, std::vector<Leaf>& out) {
    if (!node.is_map() || node.entries.empty()) return out.push_back({key, &node});
    for (const YamlEntry& e : node.entries) collect(e.value, key.empty() ? e.key : key + "." + e.key, out);
}

constexpr std::string_view unknown_key = "nibble has no such key";

class Translation {
public:
    Translation(const YamlNode& root, std::string file) : root_(root), file_(std::move(file)) {
        collect(root, "", leaves_);
    }

    Result<NemoTranslation> run() {
        const YamlNode* model = nemo_node(root_, "policy.model_name");
        if (!model) return fail("{}: 'policy.model_name' is missing", file_);
        use("policy.model_name");
        settings_ = {{"policy.model_name", yaml_of(*model)}};
        data();
        precision();
        cache();
        optimizer();
        generation_length();
        estimator();
        same_as("grpo.val_num_generations_per_prompt", "grpo.num_val_generations_per_prompt");
        same_as("checkpointing.checkpoint_dir", "output");
        if (same_nemo_value(value("checkpointing.enabled"), "false"))
            set("checkpointing.enabled", "false", "checkpointing.enabled");
        // The other keys have the same name on both sides. A key may depend on another one, so refused keys are tried
        // again.
        for (int round = 0; round < 3; ++round)
            for (Leaf& leaf : leaves_)
                if (!leaf.used && is_ours(leaf.key)) try_leaf(leaf);
        truncation();
        differing_defaults();
        note_dropped();
        result_.yaml = yaml(settings_);
        NIBBLE_CHECK(refusal(settings_).within(file_));
        return std::move(result_);
    }

private:
    using Settings = std::map<std::string, std::string>;

    static std::string yaml(const Settings& settings) {
        std::string out;
        std::vector<std::string> open;
        for (const auto& [path, text] : settings) {
            std::vector<std::string> parts{"", ""};
            for (const char c : path) {
                if (c == '.')
                    parts.emplace_back();
                else
                    parts.back() += c;
            }
            parts.erase(parts.begin());
            const std::string name = parts.back();
            parts.pop_back();
            size_t same = 0;
            while (same < std::min(open.size(), parts.size()) && open[same] == parts[same]) ++same;
            for (; same < parts.size(); ++same) out += std::string(2 * same, ' ') + parts[same] + ":\n";
            out += std::string(2 * parts.size(), ' ') + name + ": " + text + "\n";
            open = parts;
        }
        return out;
    }

    static Status refusal(const Settings& settings) {
        NIBBLE_TRY(const RlConfig config, parse_rl_config(yaml(settings), "translated"));
        static_cast<void>(config);
        return Ok{};
    }

    // Returns "" if the recipe has no such key.
    std::string value(std::string_view key) const {
        const YamlNode* node = nemo_node(root_, key);
        return node ? nemo_text(*node, root_, NemoQuotes::none) : "";
    }
    std::string yaml_of(const YamlNode& node) const { return nemo_text(node, root_, NemoQuotes::yaml); }
    void use(std::string_view key) {
        for (Leaf& leaf : leaves_)
            if (leaf.key == key) leaf.used = true;
    }
    // Adds the setting if the config still parses. Otherwise the recipe's key stays unused and the reason is stored.
    bool set(const std::string& key, const std::string& text, std::string_view from) {
        Settings next = settings_;
        next[key] = text;
        if (const Status status = refusal(next); !status.ok()) {
            const std::string message = status.error().message(), start = "translated:";
            const size_t colon = message.find(": ");
            refused_[std::string(from)] = message.find(" has no key '") != message.npos ? std::string(unknown_key)
                                          : message.starts_with(start)                  ? message.substr(colon + 2)
                                                                                        : message;
            return false;
        }
        settings_ = std::move(next);
        refused_.erase(std::string(from));
        use(from);
        return true;
    }
    void same_as(std::string_view from, const std::string& key) {
        if (const YamlNode* node = nemo_node(root_, from); node && !node->is_null()) set(key, yaml_of(*node), from);
    }
    void try_leaf(Leaf& leaf) {
        if (leaf.node->is_null()) return;
        if (const auto found = settings_.find(leaf.key); found == settings_.end())
            set(leaf.key, yaml_of(*leaf.node), leaf.key);
        else if (same_nemo_value(found->second, yaml_of(*leaf.node)))
            use(leaf.key);
        else
            refused_[leaf.key] = "another key of the recipe decides: " + found->second;
    }

    static bool is_ours(std::string_view key) {
        if (is_under(key, "grpo") || is_under(key, "loss_fn")) return true;
        for (const char* ours :
             {"policy.train_global_batch_size", "policy.max_total_sequence_length", "policy.max_grad_norm",
              "policy.generation.temperature", "policy.generation.top_p", "policy.generation.top_k",
              "policy.generation.val_temperature", "policy.generation.val_top_p", "policy.generation.stop_token_ids",
              "policy.generation.stop_strings", "checkpointing.save_period", "checkpointing.keep_top_k",
              "checkpointing.checkpoint_must_save_by"})
            if (key == ours) return true;
        return false;
    }

    // JSON Lines files are read as in NeMo RL. A data set that has only a name gets a stand-in task.
    void data() {
        const std::string file = value("data.train.data_path");
        if (!file.ends_with(".jsonl")) {
            settings_["data.task"] = "sum";
            result_.defaults.push_back(
                "data.task: the recipe's data set has no counterpart in nibble; sum is a stand-in");
            return;
        }
        settings_["data.train"] = yaml_of(*nemo_node(root_, "data.train.data_path"));
        use("data.train.data_path");
        for (const std::string key : {"input_key", "output_key"})
            for (const char* group : {"data.train.", "data.default."})
                if (!settings_.contains("data." + key)) same_as(group + key, "data." + key);
        // nibble uses the same keys for both files.
        const auto same = [&](const std::string& key) {
            const auto own = settings_.find("data." + key);
            const YamlNode* theirs = nemo_node(root_, "data.validation." + key);
            if (theirs && (own == settings_.end() || yaml_of(*theirs) != own->second)) return false;
            use("data.validation." + key);
            return true;
        };
        if (same("input_key") && same("output_key") && value("data.validation.data_path").ends_with(".jsonl"))
            same_as("data.validation.data_path", "data.validation");
    }

    // Returns ", first_bf16: N, last_bf16: N" for rollouts with layers in BF16.
    std::string bf16_layers() {
        std::string text;
        for (const auto& [end, ours] : {std::pair{"first", "first_bf16"}, std::pair{"last", "last_bf16"}}) {
            const std::string key = fmt::format("{}num_{}_layers_in_bf16", vllm_, end);
            if (const std::string layers = value(key); !layers.empty() && layers != "null" && layers != "0") {
                text += fmt::format(", {}: {}", ours, layers);
                use(key);
            }
        }
        return text;
    }
    // Returns whether rollouts round scales to powers of two, or nothing if weights and inputs differ in that.
    std::optional<bool> rollout_powers() const {
        const bool weights = same_nemo_value(value(vllm_ + "pow2_weight_scaling_factors"), "true"),
                   inputs = same_nemo_value(value(vllm_ + "pow2_activation_scaling_factors"), "true");
        return weights == inputs ? std::optional(weights) : std::nullopt;
    }
    void use_powers() {
        use(vllm_ + "pow2_weight_scaling_factors");
        use(vllm_ + "pow2_activation_scaling_factors");
    }

    // Translates rollouts in another precision than the updates.
    void generation_precision() {
        const std::string rollouts = value(vllm_ + "precision");
        const std::string updates = nemo_node(root_, "policy.precision") ? value("policy.precision") : "bfloat16";
        const bool own_updates = settings_.contains("policy.precision") && settings_["policy.precision"][0] == '{';
        if (!own_updates && rollouts == updates) return use(vllm_ + "precision");
        if (rollouts == "bfloat16") return static_cast<void>(set(ours_ + "precision", rollouts, vllm_ + "precision"));
        if (rollouts != "fp8") return;
        const bool mx = same_nemo_value(value(vllm_ + "is_mx"), "true");
        const std::optional<bool> powers = rollout_powers();
        std::string text = mx ? "recipe: mxfp8" : "recipe: fp8_block";
        text += bf16_layers();
        if (!mx && powers.value_or(false)) text += ", power_of_two: true";
        if (!set(ours_ + "precision", "{" + text + "}", vllm_ + "precision")) return;
        if (mx) use(vllm_ + "is_mx");
        if (mx || powers) use_powers();
    }

    // Translates NVFP4 by Model Optimizer: a recipe for the policy. Rollouts share it as fake-quantized layers (with a
    // quant_cfg of their own) or use stored codes (real_quant). Without either, rollouts have the model's precision.
    bool quantized() {
        const std::string updates = "policy.quant_cfg", rollouts = ours_ + "quant_cfg", real = ours_ + "real_quant";
        const std::string of_updates = value(updates), of_rollouts = value(rollouts);
        const auto known = [&](const std::string& key, const std::string& name) -> std::string {
            if (name.empty() || name == "null") return "";
            const std::string text = nemo_quant_precision(name);
            if (text.empty()) refused_[key] = "is not a supported NVFP4 recipe";
            return text;
        };
        const std::string precision = known(updates, of_updates), generation = known(rollouts, of_rollouts);
        if (precision.empty() && generation.empty()) return false;
        if (precision.empty()) {
            same_as("policy.precision", "policy.precision");
            set(ours_ + "precision", generation, rollouts);
            return true;
        }
        if (!set("policy.precision", precision, updates)) return false;
        use("policy.precision");
        const bool stored = same_nemo_value(value(real), "true");
        if (stored || of_rollouts == of_updates) {
            for (const std::string& key : {real, rollouts, vllm_ + "precision"}) use(key);
            return true;
        }
        set(ours_ + "precision", generation.empty() ? "bfloat16" : generation,
            generation.empty() ? vllm_ + "precision" : rollouts);
        return true;
    }

    void precision() {
        if (quantized()) return;
        const std::string cfg = "policy.megatron_cfg.fp8_cfg.";
        const bool fp8 = same_nemo_value(value("policy.megatron_cfg.enabled"), "true") &&
                         same_nemo_value(value(cfg + "enabled"), "true");
        const std::string recipe = fp8 ? value(cfg + "fp8_recipe") : "";
        std::string text = recipe == "blockwise" ? "recipe: fp8_block" : recipe == "mxfp8" ? "recipe: mxfp8" : "";
        if (text.empty()) {
            if (fp8)
                refused_[cfg + "fp8_recipe"] =
                    "only blockwise and mxfp8 are equal in rollouts and updates; bf16 is used";
            else
                same_as("policy.precision", "policy.precision");
            return generation_precision();
        }
        const bool mx = recipe == "mxfp8";
        const bool both = value(vllm_ + "precision") == "fp8" && same_nemo_value(value(vllm_ + "is_mx"), "true") == mx;
        if (both) text += bf16_layers();
        // TransformerEngine rounds scales to powers of two by default.
        const std::string scales = "policy.megatron_cfg.env_vars.NVTE_FP8_BLOCK_SCALING_FP32_SCALES";
        const bool powers = recipe == "blockwise" && value(scales) != "1";
        if (powers) text += ", power_of_two: true";
        if (!set("policy.precision", "{" + text + "}", cfg + "fp8_recipe")) return;
        for (const std::string& key : {cfg + "enabled", scales, std::string("policy.precision")}) use(key);
        if (value(cfg + "fp8") == "e4m3") use(cfg + "fp8");
        if (same_nemo_value(value(cfg + "fp8_param"), "false")) use(cfg + "fp8_param");
        if (!both) return generation_precision();
        use(vllm_ + "precision");
        if (rollout_powers() == powers || mx) use_powers();
        if (mx) use(vllm_ + "is_mx");
    }

    // NeMo RL uses the 99.9 percentile of the maxima. With such a cache its generator also has FP8 queries.
    void cache() {
        const std::string from = vllm_ + "kv_cache_dtype", dtype = value(from);
        if (dtype != "fp8" && dtype != "fp8_e4m3") return;
        if (!set(ours_ + "kv_cache_dtype", dtype, from)) return;
        settings_[ours_ + "kv_cache_percentile"] = "99.9";
        settings_[ours_ + "query_dtype"] = dtype;
    }

    // If a recipe has an estimator, NeMo RL uses the estimator's own switches (default true) and ignores grpo's
    // switches of the same names. Recipes without an estimator are older and use grpo's switches.
    void estimator() {
        if (!nemo_node(root_, "grpo.adv_estimator")) return;
        for (const std::string key : {"use_leave_one_out_baseline", "normalize_rewards"}) {
            const std::string own = "grpo.adv_estimator." + key, text = value(own);
            set("grpo." + key, text.empty() ? "true" : text, own);
        }
    }

    void optimizer() {
        const bool megatron = same_nemo_value(value("policy.megatron_cfg.enabled"), "true");
        const std::string from = megatron ? "policy.megatron_cfg.optimizer." : "policy.optimizer.kwargs.";
        const std::string to = "policy.optimizer.";
        same_as(from + "lr", to + "lr");
        same_as(from + "weight_decay", to + "weight_decay");
        same_as(from + (megatron ? "adam_eps" : "eps"), to + "adam_eps");
        if (megatron) {
            same_as(from + "adam_beta1", to + "adam_beta1");
            same_as(from + "adam_beta2", to + "adam_beta2");
            same_as(from + "clip_grad", "policy.max_grad_norm");
            same_as("policy.megatron_cfg.scheduler.lr_warmup_iters", to + "lr_warmup_iters");
        } else {
            linear_warmup();
        }
        if (megatron) return;
        if (const YamlNode* betas = nemo_node(root_, from + "betas"); betas && betas->items.size() == 2) {
            set(to + "adam_beta1", yaml_of(betas->items[0]), from + "betas");
            set(to + "adam_beta2", yaml_of(betas->items[1]), from + "betas");
        }
    }

    // Translates a sequence of torch schedulers: LinearLR, then ConstantLR from a milestone on.
    void linear_warmup() {
        const YamlNode* list = nemo_node(root_, "policy.scheduler");
        if (!list || !list->is_list()) return;
        std::string start, steps;
        bool constant = true;
        for (const YamlNode& item : list->items) {
            const YamlNode* name = item.find("name");
            if (!name) continue;  // the milestones
            const YamlNode* arguments = item.find("kwargs");
            if (name->text.ends_with("LinearLR") && steps.empty()) {
                const auto of = [&](const char* key) {
                    const YamlNode* node = arguments ? arguments->find(key) : nullptr;
                    return node ? nemo_text(*node, root_, NemoQuotes::none) : std::string();
                };
                start = of("start_factor"), steps = of("total_iters");
                const std::string end = of("end_factor");
                constant = constant && (end.empty() || same_nemo_value(end, "1"));
            } else {
                constant = constant && name->text.ends_with("ConstantLR");
            }
        }
        if (steps.empty() || !constant || !set("policy.optimizer.lr_warmup_iters", steps, "policy.scheduler")) return;
        result_.defaults.push_back(
            fmt::format("policy.optimizer.lr_warmup_iters: LinearLR rises from {} of the rate in {} steps, nibble's "
                        "warm-up from 1/{} of it",
                        start.empty() ? "1/3" : start, steps, steps));
    }

    // NeMo RL's usual limit is the whole sequence length, which is nibble's default.
    void generation_length() {
        const std::string from = "policy.generation.max_new_tokens", length = "policy.max_total_sequence_length";
        same_as(length, length);
        if (!value(from).empty() && same_nemo_value(value(from), value(length))) return use(from);
        same_as(from, from);
    }

    // Type and bounds of a truncation require each other, so they are set together.
    void truncation() {
        const std::string start = "loss_fn.truncated_importance_sampling_";
        Settings next = settings_;
        for (const char* end : {"type", "ratio", "ratio_min"})
            if (const YamlNode* node = nemo_node(root_, start + end); node && !node->is_null())
                next[start + end] = yaml_of(*node);
        if (next == settings_ || !refusal(next).ok()) return;
        settings_ = std::move(next);
        for (const char* end : {"type", "ratio", "ratio_min"}) use(start + end);
    }

    void differing_defaults() {
        for (const auto& [key, theirs, ours] :
             {std::tuple{"grpo.val_period", "10", "0"}, std::tuple{"checkpointing.save_period", "10", "0"},
              std::tuple{"checkpointing.keep_top_k", "3", "2"},
              std::tuple{"policy.train_global_batch_size", "512", "all answers of a step"}}) {
            if (settings_.contains(key) || nemo_node(root_, key)) continue;
            const bool written = set(key, theirs, key);
            result_.defaults.push_back(fmt::format("{}: not in the recipe; NeMo RL's default {} {}, nibble's is {}",
                                                   key, theirs, written ? "is written" : "cannot be taken", ours));
        }
        if (!settings_.contains("policy.optimizer.lr_warmup_iters"))
            result_.defaults.push_back(
                "policy.optimizer.lr_warmup_iters: NeMo RL warms up (50 steps with DTensor, 13 with Megatron), "
                "nibble's default is 0");
    }

    // Returns true for keys that NeMo RL does not read in this recipe.
    bool is_idle(const std::string& key) const {
        for (const char* group : {"policy.megatron_cfg", "policy.megatron_cfg.fp8_cfg", "policy.megatron_cfg.peft",
                                  "policy.dtensor_cfg.lora_cfg", "policy.draft", "data_plane", "grpo.async_grpo"})
            if (is_under(key, group) && same_nemo_value(value(std::string(group) + ".enabled"), "false")) return true;
        const bool megatron = same_nemo_value(value(megatron_ + "enabled"), "true");
        if (megatron && (is_under(key, "policy.optimizer") || is_under(key, "policy.scheduler"))) return true;
        if (key == megatron_ + "optimizer.sgd_momentum") return value(megatron_ + "optimizer.optimizer") == "adam";
        if (key == megatron_ + "optimizer.min_lr" || key == megatron_ + "scheduler.lr_decay_iters")
            return value(megatron_ + "scheduler.lr_decay_style") == "constant";
        if (key.starts_with(megatron_ + "mtp_")) return same_nemo_value(value(megatron_ + "mtp_num_layers"), "0");
        if (value(vllm_ + "precision") == "fp8") return false;
        for (const char* fp8 : {"num_first_layers_in_bf16", "num_last_layers_in_bf16", "pow2_weight_scaling_factors",
                                "pow2_activation_scaling_factors", "quantization_ignored_layer_kws", "is_mx"})
            if (key == vllm_ + fp8) return true;
        return false;
    }

    // Returns true if the value is one that changes nothing in nibble.
    bool is_what_we_do(const Leaf& leaf) const {
        if (const auto refused = refused_.find(leaf.key); refused != refused_.end() && refused->second != unknown_key)
            return false;
        if (is_idle(leaf.key)) return true;
        const std::optional<NemoKey> entry = find_nemo_key(leaf.key);
        if (!entry || entry->key != leaf.key || entry->same.empty()) return false;
        const std::string own = nemo_text(*leaf.node, root_, NemoQuotes::none);
        std::string_view left = entry->same;
        while (!left.empty()) {
            const size_t bar = std::min(left.find(" | "), left.size());
            const std::string same(left.substr(0, bar));
            if (same_nemo_value(own, same.starts_with('=') ? value(same.substr(1)) : same)) return true;
            left.remove_prefix(std::min(bar + 3, left.size()));
        }
        return false;
    }

    std::string reason(const std::string& key) const {
        const auto refused = refused_.find(key);
        if (refused != refused_.end() && refused->second != unknown_key) return refused->second;
        const std::optional<NemoKey> entry = find_nemo_key(key);
        return std::string(entry && !entry->reason.empty() ? entry->reason : unknown_key);
    }

    // Adds one line per key. All keys about how NeMo RL executes share one line, because they need no decision.
    void note_dropped() {
        std::string where, names;
        for (const Leaf& leaf : leaves_) {
            if (leaf.used || is_what_we_do(leaf)) continue;
            if (const auto entry = find_nemo_key(leaf.key); entry && entry->elsewhere) {
                if (names.empty()) where = leaf.node->where();
                names += (names.empty() ? "" : ", ") + leaf.key;
                continue;
            }
            result_.dropped.push_back(
                fmt::format("{}: {} {}: {}", leaf.node->where(), leaf.key, yaml_of(*leaf.node), reason(leaf.key)));
        }
        if (!names.empty())
            result_.dropped.push_back(fmt::format(
                "{}: {}: processes, memory and logs of NeMo RL, which do not affect learning", where, names));
    }

    const std::string ours_ = "policy.generation.", vllm_ = "policy.generation.vllm_cfg.";
    const std::string megatron_ = "policy.megatron_cfg.";
    const YamlNode& root_;
    std::string file_;
    std::vector<Leaf> leaves_;
    Settings settings_;
    std::map<std::string, std::string> refused_;
    NemoTranslation result_;
};

}  // namespace

Result<NemoTranslation> translate_nemo_recipe(const fs::path& file) {
    NIBBLE_TRY(YamlNode root, read_nemo_recipe(file));
    make_nemo_absolute(root, "");
    return Translation(root, file.string()).run();
}

}  // namespace nibble
