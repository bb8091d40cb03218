#include "quant/recipe.h"

#include "base/embedded.h"
#include "base/nearest.h"
#include "checkpoint/module_pattern.h"
#include "quant/recipe_imports.h"
#include "quant/recipe_parse.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view model_presets = "configs/ptq/presets/model/";
constexpr std::string_view kv_presets = "configs/ptq/presets/kv/";

std::vector<std::string> names_below(std::string_view folder) {
    std::vector<std::string> names;
    for (const EmbeddedFile& file : recipes_embedded())
        if (file.path.starts_with(folder) && file.path.ends_with(".yaml"))
            names.emplace_back(file.path.substr(folder.size(), file.path.size() - folder.size() - 5));
    return names;
}

// Replaces line ends of block scalars by spaces; a description is printed in one line.
std::string one_line(std::string_view text) {
    std::string line;
    for (const char c : text) {
        const bool space = static_cast<unsigned char>(c) <= 0x20;
        if (!space || (!line.empty() && line.back() != ' ')) line += space ? ' ' : c;
    }
    if (line.ends_with(' ')) line.pop_back();
    return line;
}

// Reads the `quantize` section, or a whole preset.
Status read_quantize(const YamlNode& node, std::string_view root, Recipe& recipe) {
    NIBBLE_CHECK(check_keys(node, "quantize", {"algorithm", "quant_cfg", "effective_bits"}));
    const YamlNode* rules = node.find("quant_cfg");
    if (!rules) return fail("{}: no 'quant_cfg'", node.where());
    NIBBLE_TRY(recipe.rules, parse_rules(*rules, root));
    if (const YamlNode* algorithm = node.find("algorithm")) {
        NIBBLE_TRY(recipe.algorithms, parse_algorithms(*algorithm));
    } else {
        recipe.algorithms = {Algorithm{}};  // the method is max
        recipe.algorithms[0].where = node.where();
    }
    return Ok{};
}

Status read_metadata(const YamlNode& node, Recipe& recipe) {
    NIBBLE_CHECK(check_keys(node, "metadata", {"recipe_type", "description"}));
    const YamlNode* type = node.find("recipe_type");
    if (!type) return fail("{}: metadata needs 'recipe_type: ptq'", node.where());
    NIBBLE_TRY(const std::string kind, as_text(*type, "recipe_type"));
    if (kind != "ptq") return fail("{}: recipe_type '{}': only ptq recipes quantize a checkpoint", type->where(), kind);
    if (const YamlNode* text = node.find("description"); text && text->kind == YamlNode::Kind::scalar)
        recipe.description = one_line(text->text);
    return Ok{};
}

Result<Recipe> read_recipe(const RecipeFile& file) {
    NIBBLE_TRY(const YamlNode root, flatten(file));
    Recipe recipe;
    recipe.name = file.name;
    if (!root.is_map()) return fail("{}: a recipe is a mapping with 'metadata' and 'quantize'", file.name);
    if (root.find("quant_cfg") && !root.find("quantize")) {
        NIBBLE_CHECK(read_quantize(root, file.name, recipe));
        return recipe;
    }
    NIBBLE_CHECK(check_keys(root, "a recipe", {"metadata", "quantize"}));
    const YamlNode* metadata = root.find("metadata");
    const YamlNode* quantize = root.find("quantize");
    if (!metadata) return fail("{}: a recipe needs 'metadata' with 'recipe_type: ptq'", file.name);
    NIBBLE_CHECK(read_metadata(*metadata, recipe));
    if (!quantize) return fail("{}: a recipe needs 'quantize' with 'quant_cfg'", file.name);
    NIBBLE_CHECK(read_quantize(*quantize, file.name, recipe));
    return recipe;
}

// Reads a recipe of two files: metadata.yaml and quantize.yaml hold the contents of their sections.
Result<Recipe> read_folder(const RecipeFile& metadata, const RecipeFile& quantize) {
    NIBBLE_TRY(const YamlNode head, flatten(metadata));
    NIBBLE_TRY(const YamlNode body, flatten(quantize));
    Recipe recipe;
    NIBBLE_CHECK(read_metadata(head, recipe));
    NIBBLE_CHECK(read_quantize(body, quantize.name, recipe));
    return recipe;
}

// Formats that no recipe makes, and the part of a recipe's name that comes nearest.
std::string_view nearest_kind(std::string_view word) {
    constexpr std::pair<std::string_view, std::string_view> kinds[]{
        {"int4", "int4"},  {"4bit", "w4a16"}, {"q4", "w4a16"},  {"nf4", "w4a16"},
        {"w4", "w4a16"},   {"bnb", "w4a16"},  {"int8", "fp8"},  {"8bit", "fp8"},
        {"w8a8", "fp8"},   {"w8a16", "fp8"},  {"q8", "fp8"},    {"w8", "fp8"},
        {"w4a4", "nvfp4"}, {"mx4", "mxfp4"},  {"mx8", "mxfp8"}, {"smoothquant", "fp8"}};
    const auto found = std::ranges::find(kinds, word, &std::pair<std::string_view, std::string_view>::first);
    return found == std::end(kinds) ? word : found->second;
}

// The shortest names that contain every word of `name`: "; recipes of that kind: nvfp4_gptq, w4a16_nvfp4_gptq".
std::string presets_of_kind(std::string_view name, std::vector<std::string> presets) {
    constexpr size_t most_named = 3, least_word = 2;
    std::string lower(name);
    for (char& c : lower) c = static_cast<char>(std::isalnum(static_cast<unsigned char>(c)) ? std::tolower(c) : ' ');
    int words = 0;
    for (std::string_view rest = lower; !rest.empty();) {
        const std::string_view word = rest.substr(0, rest.find(' '));
        rest.remove_prefix(std::min(rest.size(), word.size() + 1));
        if (word.empty()) continue;
        if (word.size() < least_word) return {};
        ++words;
        std::erase_if(presets, [&](const std::string& p) { return p.find(nearest_kind(word)) == p.npos; });
    }
    if (words == 0 || presets.empty()) return {};
    std::ranges::stable_sort(presets, {}, &std::string::size);
    if (presets.size() > most_named) presets.resize(most_named);
    return fmt::format("; recipes of that kind: {}", fmt::join(presets, ", "));
}

Result<Recipe> find_recipe(std::string_view name) {
    if (name.find('/') == std::string_view::npos)
        if (auto preset = find_builtin(fmt::format("{}{}", model_presets, preset_of_spelling(name))))
            return read_recipe(*preset);
    if (auto builtin = find_builtin(name)) return read_recipe(*builtin);
    if (auto metadata = find_builtin(fmt::format("{}/metadata", name)))
        if (auto quantize = find_builtin(fmt::format("{}/quantize", name))) return read_folder(*metadata, *quantize);

    const fs::path path{name};
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) {
        NIBBLE_TRY(const auto metadata, find_on_disk(path / "metadata"));
        NIBBLE_TRY(const auto quantize, find_on_disk(path / "quantize"));
        if (!metadata || !quantize)
            return fail("{}: a recipe folder holds metadata.yaml and quantize.yaml", path.string());
        return read_folder(*metadata, *quantize);
    }
    NIBBLE_TRY(const auto file, find_on_disk(path));
    if (file) return read_recipe(*file);
    NIBBLE_CHECK(check_recipe_name(name));
    return fail("{}: neither a file nor a folder", name);
}

}  // namespace

Result<Recipe> load_recipe(std::string_view name_or_path) {
    NIBBLE_TRY(Recipe recipe, find_recipe(name_or_path).as(ErrorKind::recipe));
    recipe.name = name_or_path;
    return recipe;
}

Result<std::vector<Rule>> load_kv_rules(std::string_view preset) {
    if (preset == "none") {
        Rule off;
        off.pattern = "*[kv]_bmm_quantizer";
        off.enable = false;
        off.where = "--kv none";
        off.imported = true;
        return std::vector<Rule>{off};
    }
    const auto file = preset.find('/') == std::string_view::npos ? find_builtin(fmt::format("{}{}", kv_presets, preset))
                                                                 : std::nullopt;
    if (!file) return fail("no KV cache preset '{}'; there are: none, {}", preset, fmt::join(kv_preset_names(), ", "));
    NIBBLE_TRY(Recipe recipe, read_recipe(*file));
    return std::move(recipe.rules);
}

Result<Recipe> parse_recipe(std::string_view text, std::string_view file, const fs::path& folder) {
    return read_recipe({std::string(file), std::string(text), folder});
}

std::string preset_of_spelling(std::string_view name) {
    std::string lower(name);
    for (char& c : lower) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    for (const std::string_view suffix : {"_cfg", "_default"})
        if (lower.ends_with(suffix)) lower.resize(lower.size() - suffix.size());
    const auto presets = preset_names();
    return std::ranges::find(presets, lower) != presets.end() ? lower : std::string(name);
}

Result<std::string> check_recipe_name(std::string_view name) {
    if (name.empty()) return fail("no recipe given (`nibble recipes` lists them)");
    const auto presets = preset_names();
    const std::string preset = preset_of_spelling(name);
    if (std::ranges::find(presets, preset) != presets.end()) return preset;
    std::error_code ignored;
    if (find_builtin(name) || find_builtin(fmt::format("{}/metadata", name))) return std::string(name);
    for (const std::string_view suffix : {"", ".yaml", ".yml"})
        if (fs::exists(fs::path(std::string(name) + std::string(suffix)), ignored)) return std::string(name);
    if (name.find('/') != name.npos || name.ends_with(".yaml") || name.ends_with(".yml"))
        return fail("no recipe '{}': neither a file nor a built-in recipe", name);
    std::string meant = presets_of_kind(name, presets);
    if (meant.empty()) meant = did_you_mean(name, presets);
    return fail("no recipe '{}'{} (`nibble recipes` lists them)", name, meant);
}

Rule ignore_rule(std::string module) {
    constexpr std::string_view tensor = ".weight";
    Rule rule;
    if (is_regex_pattern(module)) {
        rule.pattern = std::move(module);
    } else {
        if (module.ends_with(tensor)) module.resize(module.size() - tensor.size());
        rule.pattern = module + ".*";
    }
    rule.enable = false;
    rule.where = "--ignore";
    return rule;
}

std::vector<std::string> preset_names() { return names_below(model_presets); }
std::vector<std::string> kv_preset_names() { return names_below(kv_presets); }

}  // namespace nibble
