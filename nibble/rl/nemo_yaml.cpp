#include "rl/nemo_yaml.h"

#include "base/json.h"
#include "base/mapped_file.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
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

// Reads the recipe over the files of its `defaults`. over: the files whose `defaults` led to this one.
Result<YamlNode> read_recipe(const fs::path& file, const std::vector<fs::path>& over) {
    if (std::ranges::count(over, file.lexically_normal()) > 0)
        return fail("{}: its 'defaults' include the file itself", file.string());
    if (over.size() > 8) return fail("{}: 'defaults' are nested more than 8 files deep", file.string());
    std::vector<fs::path> with = over;
    with.push_back(file.lexically_normal());
    NIBBLE_TRY(const std::string text, read_text_file(file, max_yaml_bytes));
    NIBBLE_TRY(const auto documents, parse_yaml(text, file.string()));
    if (documents.size() != 1 || !documents[0].is_map())
        return fail("{}: a recipe must be one map of keys", file.string());
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

}  // namespace

const YamlNode* nemo_node(const YamlNode& root, std::string_view path) {
    const YamlNode* node = &root;
    while (node && !path.empty()) {
        const size_t dot = std::min(path.find('.'), path.size());
        node = node->is_map() ? node->find(path.substr(0, dot)) : nullptr;
        path.remove_prefix(std::min(dot + 1, path.size()));
    }
    return node;
}

namespace {

// Returns the product in "x, y", or nothing if a factor is not a number or the product is not finite.
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
    if (!(std::abs(product) < 0x1p53)) return std::nullopt;  // larger whole numbers are not exact
    return product == std::trunc(product) ? fmt::format("{}", static_cast<int64_t>(product))
                                          : fmt::format("{}", product);
}

// Substitutes ${a.b} and ${mul:x, y}, innermost first. Unknown references stay and are refused where they are used.
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
            const YamlNode* node = nemo_node(root, inner);
            if (!node || node->is_map() || node->is_list() || depth > 8) return;
            value = node->is_null() ? "null" : node->text;
            put_in(value, root, depth + 1);
            if (value.find("${") != value.npos) return;
        }
        text.replace(start, end - start + 1, value);
    }
}

}  // namespace

std::string nemo_text(const YamlNode& node, const YamlNode& root, NemoQuotes quotes) {
    if (node.is_null()) return "null";
    if (node.is_list() || node.is_map()) {
        std::string out;
        for (const YamlNode& item : node.items) out += (out.empty() ? "" : ", ") + nemo_text(item, root, quotes);
        for (const YamlEntry& e : node.entries)
            out += (out.empty() ? "" : ", ") + e.key + ": " + nemo_text(e.value, root, quotes);
        return node.is_list() ? "[" + out + "]" : "{" + out + "}";
    }
    std::string text = node.text;
    put_in(text, root, 0);
    if (quotes == NemoQuotes::none) return text;
    const bool plain = !text.empty() && text.find_first_not_of(
                                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                            "0123456789._/+-") == text.npos;
    // A substituted value keeps its type.
    return (node.quoted && text == node.text) || !plain ? Json(text).dump() : text;
}

void make_nemo_absolute(YamlNode& node, const std::string& path) {
    for (YamlEntry& e : node.entries) {
        std::string& text = e.value.text;
        for (size_t at = text.find("${."); at != text.npos; at = text.find("${.", at + 1)) {
            const size_t name = std::min(text.find_first_not_of('.', at + 2), text.size());
            std::string group = path;
            for (size_t up = name - at - 3; up > 0; --up)
                group.erase(group.rfind('.') == group.npos ? 0 : group.rfind('.'));
            text.replace(at + 2, name - at - 2, group.empty() ? "" : group + ".");
        }
        make_nemo_absolute(e.value, path.empty() ? e.key : path + "." + e.key);
    }
}

bool same_nemo_value(std::string a, std::string b) {
    char *end_a = nullptr, *end_b = nullptr;
    const double x = std::strtod(a.c_str(), &end_a), y = std::strtod(b.c_str(), &end_b);
    if (!a.empty() && !b.empty() && *end_a == 0 && *end_b == 0) return x == y;
    for (std::string* word : {&a, &b})
        if (*word == "True" || *word == "False") word->front() += 'a' - 'A';
    return a == b;
}

Result<YamlNode> read_nemo_recipe(const fs::path& file) { return read_recipe(file, {}); }

}  // namespace nibble
