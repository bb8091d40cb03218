#include "io/schema.h"

#include "base/nearest.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace nibble {
namespace {

std::string group_of_key(const std::string& name) {
    const size_t dot = name.rfind('.');
    return dot == name.npos ? "" : name.substr(0, dot);
}

std::string last_word(const std::string& name) { return name.substr(name.rfind('.') + 1); }  // npos + 1 is 0

// Keys of other trainers (transformers, PyTorch, Megatron) and the last word of the key with the same meaning.
constexpr std::pair<std::string_view, std::string_view> words_elsewhere[]{
    {"lr", "learning_rate"},
    {"max_lr", "learning_rate"},
    {"wd", "weight_decay"},
    {"max_grad_norm", "clip"},
    {"grad_clip", "clip"},
    {"clip_grad", "clip"},
    {"adam_beta1", "beta1"},
    {"adam_beta2", "beta2"},
    {"adam_epsilon", "epsilon"},
    {"eps", "epsilon"},
    {"warmup_steps", "warmup"},
    {"max_steps", "steps"},
    {"train_iters", "steps"},
    {"batch_size", "batch"},
    {"train_batch_size", "batch"},
    {"global_batch_size", "batch"},
    {"per_device_train_batch_size", "micro_batch"},
    {"micro_batch_size", "micro_batch"},
    {"max_seq_length", "sequence"},
    {"max_length", "sequence"},
    {"seq_length", "sequence"},
    {"seq_len", "sequence"},
    {"block_size", "sequence"},
    {"output_dir", "output"},
    {"model_name_or_path", "model"},
    {"model_name", "model"},
    {"dataset", "data"},
    {"train_file", "data"},
    {"gradient_checkpointing", "recompute"},
    {"save_steps", "every"},
};

}  // namespace

Result<KeyOverride> key_override(std::string_view text, std::string source) {
    const size_t equals = text.find('=');
    if (equals == text.npos || equals == 0) return fail("{}: '{}' is not KEY=VALUE", source, text);
    return KeyOverride{std::string(text.substr(0, equals)), std::string(text.substr(equals + 1)), std::move(source)};
}

Result<std::vector<KeyOverride>> key_overrides(const std::vector<std::string>& texts, const std::string& source) {
    std::vector<KeyOverride> list;
    for (const std::string& text : texts) {
        NIBBLE_TRY(KeyOverride one, key_override(text, source));
        list.push_back(std::move(one));
    }
    return list;
}

void SchemaNames::add(const std::string& name) {
    names_.insert(name);
    for (std::string at = name; !at.empty();) {
        const std::string group = group_of_key(at);
        std::vector<std::string>& siblings = children_[group];
        if (std::ranges::find(siblings, last_word(at)) == siblings.end()) siblings.push_back(last_word(at));
        at = group;
    }
}

Error SchemaNames::unknown(const YamlNode& at, const std::string& group, const std::string& word) const {
    const std::vector<std::string>& known = children_.find(group)->second;
    // The same key in another group, then a key that other programs call so, then a misspelling.
    std::string meant;
    const auto look_for = [&](std::string_view wanted) {
        const auto is_it = [&](const std::string& name) { return last_word(name) == wanted; };
        auto found = std::ranges::find_if(known, is_it);
        if (found != known.end()) meant = *found;
        if (const auto name = std::ranges::find_if(names_, is_it); meant.empty() && name != names_.end()) meant = *name;
    };
    look_for(word);
    const auto elsewhere =
        std::ranges::find(words_elsewhere, word, &std::pair<std::string_view, std::string_view>::first);
    if (meant.empty() && elsewhere != std::end(words_elsewhere)) look_for(elsewhere->second);
    meant = meant.empty() ? did_you_mean(word, known) : fmt::format("; did you mean '{}'?", meant);
    return fail("{}: {} has no key '{}'; it has: {}{}", at.where(), group.empty() ? "the config" : group, word,
                fmt::join(known, ", "), meant);
}

Status SchemaNames::collect(const YamlNode& map, const std::string& prefix, GivenKeys& given) const {
    for (const YamlEntry& entry : map.entries) {
        std::string name = prefix.empty() ? entry.key : prefix + "." + entry.key;
        if (names_.contains(name)) {
            given.nodes_[name] = &entry.value;
        } else if (!is_group(name)) {
            return unknown(entry.value, prefix, entry.key);
        } else {
            given.groups_.insert(name);
            if (entry.value.is_map()) {
                NIBBLE_CHECK(collect(entry.value, name, given));
                continue;
            }
            const auto short_for = shorthands_.find(name);
            if (short_for == shorthands_.end()) return fail("{}: {} must be a map", entry.value.where(), name);
            given.nodes_[name + "." + short_for->second] = &entry.value;
        }
    }
    return Ok{};
}

Status SchemaNames::set(YamlNode& root, const std::vector<KeyOverride>& overrides) const {
    for (const KeyOverride& to : overrides) NIBBLE_CHECK(set(root, to));
    return Ok{};
}

Status SchemaNames::set(YamlNode& root, const KeyOverride& to) const {
    NIBBLE_TRY(auto documents, parse_yaml(to.value, to.source));
    YamlNode value;
    if (!documents.empty()) value = std::move(documents[0]);
    const auto place = [&](YamlNode& node) {
        node.file = std::make_shared<const std::string>(to.source);
        node.line = 0;
    };
    place(value);
    YamlNode* node = &root;
    std::string name;
    for (std::string_view left = to.key;;) {
        const std::string word(left.substr(0, left.find('.')));
        name += (name.empty() ? "" : ".") + word;
        if (!names_.contains(name) && !is_group(name)) return unknown(value, group_of_key(name), word);
        auto entry = std::ranges::find(node->entries, word, &YamlEntry::key);
        if (entry == node->entries.end()) {
            YamlNode empty;
            empty.kind = YamlNode::Kind::map;
            place(empty);
            node->entries.push_back({word, std::move(empty)});
            entry = node->entries.end() - 1;
        }
        node = &entry->value;
        if (word.size() == left.size()) break;
        left.remove_prefix(word.size() + 1);
        if (const auto short_for = shorthands_.find(name); !node->is_map() && short_for != shorthands_.end()) {
            YamlNode map;
            map.kind = YamlNode::Kind::map;
            map.file = node->file, map.line = node->line;
            map.entries.push_back({short_for->second, std::move(*node)});
            *node = std::move(map);
        }
    }
    *node = std::move(value);
    return Ok{};
}

void set_json_key(Json& object, std::string_view name, Json value) {
    Json* at = &object;
    for (size_t dot; (dot = name.find('.')) != name.npos; name.remove_prefix(dot + 1))
        at = &(*at)[std::string(name.substr(0, dot))];
    (*at)[std::string(name)] = std::move(value);
}

std::string keys_as_text(const std::vector<KeyText>& keys) {
    std::string out;
    for (const KeyText& k : keys)
        out += fmt::format("{}\n    {}; default: {}{}\n    {}\n", k.name, k.kind, k.usual,
                           k.bits ? "" : "; may change when a run resumes", k.help);
    return out;
}

}  // namespace nibble
