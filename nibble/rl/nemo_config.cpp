#include "rl/nemo_config.h"

#include "base/mapped_file.h"
#include "io/yaml.h"
#include "rl/nemo_keys.h"
#include "rl/rl_config.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>

namespace nibble {
namespace {

namespace fs = std::filesystem;

void override_with(YamlNode& base, const YamlNode& over) {
    for (const YamlEntry& entry : over.entries) {
        const auto old = std::ranges::find(base.entries, entry.key, &YamlEntry::key);
        if (old == base.entries.end())
            base.entries.push_back(entry);
        else if (old->value.is_map() && entry.value.is_map())
            override_with(old->value, entry.value);
        else
            old->value = entry.value;
    }
}

// The recipe over the files that its `defaults` name, which lie beside it. over: those that led here.
Result<YamlNode> read_recipe(const fs::path& file, const std::vector<fs::path>& over) {
    if (std::ranges::count(over, file.lexically_normal()) > 0)
        return fail("{}: is among its own 'defaults'", file.string());
    if (over.size() > 8) return fail("{}: 'defaults' more than 8 files deep", file.string());
    std::vector<fs::path> with = over;
    with.push_back(file.lexically_normal());
    NIBBLE_TRY(const std::string text, read_text_file(file, max_yaml_bytes));
    NIBBLE_TRY(const auto documents, parse_yaml(text, file.string()));
    if (documents.size() != 1 || !documents[0].is_map()) return fail("{}: a recipe is one map of keys", file.string());
    YamlNode recipe = documents[0], merged = recipe;
    merged.entries.clear();
    if (const YamlNode* parents = recipe.find("defaults")) {
        for (const YamlNode& parent : parents->is_list() ? parents->items : std::vector<YamlNode>{*parents}) {
            NIBBLE_TRY(const std::string name, as_text(parent, "defaults"));
            NIBBLE_TRY(const YamlNode base,
                       read_recipe(file.parent_path() / name, with).within(parent.where() + ": defaults"));
            override_with(merged, base);
        }
        std::erase_if(recipe.entries, [](const YamlEntry& e) { return e.key == "defaults"; });
    }
    override_with(merged, recipe);
    return merged;
}

const YamlNode* at(const YamlNode& root, std::string_view path) {
    const YamlNode* node = &root;
    while (node && !path.empty()) {
        const size_t dot = std::min(path.find('.'), path.size());
        node = node->is_map() ? node->find(path.substr(0, dot)) : nullptr;
        path.remove_prefix(std::min(dot + 1, path.size()));
    }
    return node;
}

// Of "x, y"; nothing where one of them is no number or their product no finite one.
std::optional<std::string> product_of(std::string_view factors) {
    const size_t comma = factors.find(',');
    if (comma == factors.npos) return std::nullopt;
    double product = 1;
    for (std::string_view one : {factors.substr(0, comma), factors.substr(comma + 1)}) {
        while (one.starts_with(' ')) one.remove_prefix(1);
        while (one.ends_with(' ')) one.remove_suffix(1);
        double value = 0;
        const auto [end, error] = std::from_chars(one.data(), one.data() + one.size(), value);
        if (error != std::errc{} || end != one.data() + one.size()) return std::nullopt;
        product *= value;
    }
    if (!(std::abs(product) < 0x1p53)) return std::nullopt;  // what is larger is no longer exact
    return product == std::trunc(product) ? fmt::format("{}", static_cast<int64_t>(product))
                                          : fmt::format("{}", product);
}

// Puts ${a.b} and ${mul:x, y} in, innermost first. What cannot be put in stays and is refused where it is used.
void put_in(std::string& text, const YamlNode& root, int depth) {
    for (int left = 64; left > 0; --left) {
        const size_t start = text.rfind("${"), end = text.find('}', start);
        if (start == text.npos || end == text.npos) return;
        const std::string inner = text.substr(start + 2, end - start - 2);
        std::string value;
        if (inner.starts_with("mul:")) {
            const auto product = product_of(std::string_view(inner).substr(4));
            if (!product) return;
            value = *product;
        } else {
            const YamlNode* node = at(root, inner);
            if (!node || node->is_map() || node->is_list() || depth > 8) return;
            value = node->is_null() ? "null" : node->text;
            put_in(value, root, depth + 1);
            if (value.find("${") != value.npos) return;
        }
        text.replace(start, end - start + 1, value);
    }
}

enum class Quotes : uint8_t { none, yaml };

// The value as YAML, or without quotes, as it is compared.
std::string text_of(const YamlNode& node, const YamlNode& root, Quotes quotes) {
    if (node.is_null()) return "null";
    if (node.is_list() || node.is_map()) {
        std::string out;
        for (const YamlNode& item : node.items) out += (out.empty() ? "" : ", ") + text_of(item, root, quotes);
        for (const YamlEntry& e : node.entries)
            out += (out.empty() ? "" : ", ") + e.key + ": " + text_of(e.value, root, quotes);
        return node.is_list() ? "[" + out + "]" : "{" + out + "}";
    }
    std::string text = node.text;
    put_in(text, root, 0);
    if (quotes == Quotes::none) return text;
    const bool plain = !text.empty() && text.find_first_not_of(
                                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                            "0123456789._/+-") == text.npos;
    // What ${a.b} puts in has the type that it has there.
    return (node.quoted && text == node.text) || !plain ? Json(text).dump() : text;
}

// ${.a} is ${b.a} in the map b, ${..a} what stands beside b.
void make_absolute(YamlNode& node, const std::string& path) {
    for (YamlEntry& e : node.entries) {
        std::string& text = e.value.text;
        for (size_t at = text.find("${."); at != text.npos; at = text.find("${.", at + 1)) {
            const size_t name = std::min(text.find_first_not_of('.', at + 2), text.size());
            std::string group = path;
            for (size_t up = name - at - 3; up > 0; --up)
                group.erase(group.rfind('.') == group.npos ? 0 : group.rfind('.'));
            text.replace(at + 2, name - at - 2, group.empty() ? "" : group + ".");
        }
        make_absolute(e.value, path.empty() ? e.key : path + "." + e.key);
    }
}

// As numbers where both are some, as words otherwise; True is true.
bool is_same(std::string a, std::string b) {
    char *end_a = nullptr, *end_b = nullptr;
    const double x = std::strtod(a.c_str(), &end_a), y = std::strtod(b.c_str(), &end_b);
    if (!a.empty() && !b.empty() && *end_a == 0 && *end_b == 0) return x == y;
    for (std::string* word : {&a, &b})
        if (*word == "True" || *word == "False") word->front() += 'a' - 'A';
    return a == b;
}

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
        const YamlNode* model = at(root_, "policy.model_name");
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
        if (is_same(value("checkpointing.enabled"), "false"))
            set("checkpointing.enabled", "false", "checkpointing.enabled");
        // The rest has the same name on both sides. What needs another key is tried again behind it.
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

    // "" where the recipe has no such key.
    std::string value(std::string_view key) const {
        const YamlNode* node = at(root_, key);
        return node ? text_of(*node, root_, Quotes::none) : "";
    }
    std::string yaml_of(const YamlNode& node) const { return text_of(node, root_, Quotes::yaml); }
    void use(std::string_view key) {
        for (Leaf& leaf : leaves_)
            if (leaf.key == key) leaf.used = true;
    }
    // Takes the setting if the config still parses; else the recipe's key stays unused, and the reason is kept.
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
        if (const YamlNode* node = at(root_, from); node && !node->is_null()) set(key, yaml_of(*node), from);
    }
    void try_leaf(Leaf& leaf) {
        if (leaf.node->is_null()) return;
        if (const auto found = settings_.find(leaf.key); found == settings_.end())
            set(leaf.key, yaml_of(*leaf.node), leaf.key);
        else if (is_same(found->second, yaml_of(*leaf.node)))
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

    // Files of JSON lines are read here as there; a data set that has a name and no file is not.
    void data() {
        const std::string file = value("data.train.data_path");
        if (!file.ends_with(".jsonl")) {
            settings_["data.task"] = "sum";
            result_.defaults.push_back("data.task: a stand-in, sum: the recipe's data set has no counterpart here");
            return;
        }
        settings_["data.train"] = yaml_of(*at(root_, "data.train.data_path"));
        use("data.train.data_path");
        for (const std::string key : {"input_key", "output_key"})
            for (const char* group : {"data.train.", "data.default."})
                if (!settings_.contains("data." + key)) same_as(group + key, "data." + key);
        // Both files have the same keys here.
        const auto same = [&](const std::string& key) {
            const auto own = settings_.find("data." + key);
            const YamlNode* theirs = at(root_, "data.validation." + key);
            if (theirs && (own == settings_.end() || yaml_of(*theirs) != own->second)) return false;
            use("data.validation." + key);
            return true;
        };
        if (same("input_key") && same("output_key") && value("data.validation.data_path").ends_with(".jsonl"))
            same_as("data.validation.data_path", "data.validation");
    }

    // ", first_bf16: N, last_bf16: N" of rollouts' layers that stay BF16.
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
    // Whether rollouts round scales to powers of two; none: weights and inputs differ.
    std::optional<bool> rollout_powers() const {
        const bool weights = is_same(value(vllm_ + "pow2_weight_scaling_factors"), "true"),
                   inputs = is_same(value(vllm_ + "pow2_activation_scaling_factors"), "true");
        return weights == inputs ? std::optional(weights) : std::nullopt;
    }
    void use_powers() {
        use(vllm_ + "pow2_weight_scaling_factors");
        use(vllm_ + "pow2_activation_scaling_factors");
    }

    // Rollouts of updates in another precision.
    void generation_precision() {
        const std::string rollouts = value(vllm_ + "precision");
        const std::string updates = at(root_, "policy.precision") ? value("policy.precision") : "bfloat16";
        const bool own_updates = settings_.contains("policy.precision") && settings_["policy.precision"][0] == '{';
        if (!own_updates && rollouts == updates) return use(vllm_ + "precision");
        if (rollouts == "bfloat16") return static_cast<void>(set(ours_ + "precision", rollouts, vllm_ + "precision"));
        if (rollouts != "fp8") return;
        const bool mx = is_same(value(vllm_ + "is_mx"), "true");
        const std::optional<bool> powers = rollout_powers();
        std::string text = mx ? "recipe: mxfp8" : "recipe: fp8_block";
        text += bf16_layers();
        if (!mx && powers.value_or(false)) text += ", power_of_two: true";
        if (!set(ours_ + "precision", "{" + text + "}", vllm_ + "precision")) return;
        if (mx) use(vllm_ + "is_mx");
        if (mx || powers) use_powers();
    }

    void precision() {
        const std::string cfg = "policy.megatron_cfg.fp8_cfg.";
        const bool fp8 =
            is_same(value("policy.megatron_cfg.enabled"), "true") && is_same(value(cfg + "enabled"), "true");
        const std::string recipe = fp8 ? value(cfg + "fp8_recipe") : "";
        std::string text = recipe == "blockwise" ? "recipe: fp8_block" : recipe == "mxfp8" ? "recipe: mxfp8" : "";
        if (text.empty()) {
            if (fp8)
                refused_[cfg + "fp8_recipe"] =
                    "only blockwise and mxfp8 are the same for rollouts and updates; bf16 instead";
            else
                same_as("policy.precision", "policy.precision");
            return generation_precision();
        }
        const bool mx = recipe == "mxfp8";
        const bool both = value(vllm_ + "precision") == "fp8" && is_same(value(vllm_ + "is_mx"), "true") == mx;
        if (both) text += bf16_layers();
        // TransformerEngine rounds scales to powers of two unless it is told not to.
        const std::string scales = "policy.megatron_cfg.env_vars.NVTE_FP8_BLOCK_SCALING_FP32_SCALES";
        const bool powers = recipe == "blockwise" && value(scales) != "1";
        if (powers) text += ", power_of_two: true";
        if (!set("policy.precision", "{" + text + "}", cfg + "fp8_recipe")) return;
        for (const std::string& key : {cfg + "enabled", scales, std::string("policy.precision")}) use(key);
        if (value(cfg + "fp8") == "e4m3") use(cfg + "fp8");
        if (is_same(value(cfg + "fp8_param"), "false")) use(cfg + "fp8_param");
        if (!both) return generation_precision();
        use(vllm_ + "precision");
        if (rollout_powers() == powers || mx) use_powers();
        if (mx) use(vllm_ + "is_mx");
    }

    // NeMo RL takes the 99.9 percentile of the maxima; with such a cache its generator has queries in FP8, too.
    void cache() {
        const std::string from = vllm_ + "kv_cache_dtype", dtype = value(from);
        if (dtype != "fp8" && dtype != "fp8_e4m3") return;
        if (!set(ours_ + "kv_cache_dtype", dtype, from)) return;
        settings_[ours_ + "kv_cache_percentile"] = "99.9";
        settings_[ours_ + "query_dtype"] = dtype;
    }

    // Where a recipe has an estimator, NeMo RL learns from the estimator's own switches, true by default, whatever
    // grpo's of the same names say. Recipes without one are of the time when grpo's were the only ones.
    void estimator() {
        if (!at(root_, "grpo.adv_estimator")) return;
        for (const std::string key : {"use_leave_one_out_baseline", "normalize_rewards"}) {
            const std::string own = "grpo.adv_estimator." + key, text = value(own);
            set("grpo." + key, text.empty() ? "true" : text, own);
        }
    }

    void optimizer() {
        const bool megatron = is_same(value("policy.megatron_cfg.enabled"), "true");
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
        } else if (const YamlNode* betas = at(root_, from + "betas"); betas && betas->items.size() == 2) {
            set(to + "adam_beta1", yaml_of(betas->items[0]), from + "betas");
            set(to + "adam_beta2", yaml_of(betas->items[1]), from + "betas");
        }
    }

    // NeMo RL's usual limit is the whole sequence: what the length leaves.
    void generation_length() {
        const std::string from = "policy.generation.max_new_tokens", length = "policy.max_total_sequence_length";
        same_as(length, length);
        if (!value(from).empty() && is_same(value(from), value(length))) return use(from);
        same_as(from, from);
    }

    // Type and bound of a truncation need each other, so they are taken together.
    void truncation() {
        const std::string start = "loss_fn.truncated_importance_sampling_";
        Settings next = settings_;
        for (const char* end : {"type", "ratio", "ratio_min"})
            if (const YamlNode* node = at(root_, start + end); node && !node->is_null())
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
            if (settings_.contains(key) || at(root_, key)) continue;
            const bool written = set(key, theirs, key);
            result_.defaults.push_back(fmt::format("{}: not in the recipe; NeMo RL's default {} {}, ours is {}", key,
                                                   theirs, written ? "is written" : "cannot be taken", ours));
        }
        if (!settings_.contains("policy.optimizer.lr_warmup_iters"))
            result_.defaults.push_back(
                "policy.optimizer.lr_warmup_iters: NeMo RL warms up (50 steps with DTensor, 13 "
                "with Megatron), ours is 0");
    }

    // Keys that NeMo RL does not read in this recipe.
    bool is_idle(const std::string& key) const {
        for (const char* group : {"policy.megatron_cfg", "policy.megatron_cfg.fp8_cfg", "policy.megatron_cfg.peft",
                                  "policy.dtensor_cfg.lora_cfg", "policy.draft", "data_plane", "grpo.async_grpo"})
            if (is_under(key, group) && is_same(value(std::string(group) + ".enabled"), "false")) return true;
        const bool megatron = is_same(value(megatron_ + "enabled"), "true");
        if (megatron && (is_under(key, "policy.optimizer") || is_under(key, "policy.scheduler"))) return true;
        if (key == megatron_ + "optimizer.sgd_momentum") return value(megatron_ + "optimizer.optimizer") == "adam";
        if (key == megatron_ + "optimizer.min_lr" || key == megatron_ + "scheduler.lr_decay_iters")
            return value(megatron_ + "scheduler.lr_decay_style") == "constant";
        if (key.starts_with(megatron_ + "mtp_")) return is_same(value(megatron_ + "mtp_num_layers"), "0");
        if (value(vllm_ + "precision") == "fp8") return false;
        for (const char* fp8 : {"num_first_layers_in_bf16", "num_last_layers_in_bf16", "pow2_weight_scaling_factors",
                                "pow2_activation_scaling_factors", "quantization_ignored_layer_kws", "is_mx"})
            if (key == vllm_ + fp8) return true;
        return false;
    }

    // Whether the value is one of those under which NeMo RL does what a run here does anyhow.
    bool is_what_we_do(const Leaf& leaf) const {
        if (const auto refused = refused_.find(leaf.key); refused != refused_.end() && refused->second != unknown_key)
            return false;
        if (is_idle(leaf.key)) return true;
        const std::optional<NemoKey> entry = find_nemo_key(leaf.key);
        if (!entry || entry->key != leaf.key || entry->same.empty()) return false;
        const std::string own = text_of(*leaf.node, root_, Quotes::none);
        std::string_view left = entry->same;
        while (!left.empty()) {
            const size_t bar = std::min(left.find(" | "), left.size());
            const std::string same(left.substr(0, bar));
            if (is_same(own, same.starts_with('=') ? value(same.substr(1)) : same)) return true;
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

    // A line for each key, but one for all that say how NeMo RL runs: nobody has to decide anything about them.
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
                "{}: {}: processes, memory and logs of NeMo RL; nothing is learned from them", where, names));
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
    NIBBLE_TRY(YamlNode root, read_recipe(file, {}));
    make_absolute(root, "");
    return Translation(root, file.string()).run();
}

}  // namespace nibble
