#include "quant/recipe_imports.h"

#include "base/embedded.h"
#include "base/mapped_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include "base/mapped_file.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr size_t max_import_depth = 16;
constexpr std::string_view suffixes[] = {"", ".yaml", ".yml"};

bool has_schema_comment(std::string_view text) {
    constexpr std::string_view mark = "modelopt-schema:";
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        std::string_view line = text.substr(at, end - at);
        at = end + 1;
        if (!line.starts_with('#')) continue;
        line.remove_prefix(std::min(line.find_first_not_of("# "), line.size()));
        if (line.starts_with(mark) && line.find_first_not_of(" \r", mark.size()) != std::string_view::npos) return true;
    }
    return false;
}

// Returns true if a path stays in the tree: recipes from other sources may only read files of their own tree.
bool stays_below(const fs::path& path) {
    return !path.empty() && path.is_relative() && std::ranges::find(path, fs::path("..")) == path.end();
}

class Flattener {
public:
    Result<YamlNode> file(const RecipeFile& file, bool imported) {
        if (std::find(stack_.begin(), stack_.end(), file.name) != stack_.end())
            return fail("import cycle: {} -> {}", fmt::join(stack_, " -> "), file.name);
        if (stack_.size() >= max_import_depth)
            return fail("{}: imports nested deeper than {} files", file.name, max_import_depth);
        if (imported && !has_schema_comment(file.text))
            return fail("{}: an imported file needs a comment '# modelopt-schema: TYPE'", file.name);
        stack_.push_back(file.name);
        NIBBLE_TRY(YamlNode node, expand_file(file));
        stack_.pop_back();
        return node;
    }

private:
    using Scope = std::map<std::string, const YamlNode*, std::less<>>;  // alias -> contents of the imported file

    Result<YamlNode> expand_file(const RecipeFile& file) {
        NIBBLE_TRY(auto documents, parse_yaml(file.text, file.name));
        if (documents.empty()) return fail("{}: is empty", file.name);
        if (documents.size() > 2)
            return fail("{}: {} YAML documents; at most two (imports, body)", file.name, documents.size());
        YamlNode body = std::move(documents.back());
        const YamlNode& head = documents.size() == 2 ? documents.front() : body;
        if (documents.size() == 2) NIBBLE_CHECK(check_keys(head, "the first of two documents", {"imports"}));

        Scope scope;
        if (const YamlNode* imports = head.find("imports")) {
            if (!imports->is_map() && !imports->is_null())
                return fail("{}: 'imports' must be a mapping", imports->where());
            for (const YamlEntry& entry : imports->entries) {
                NIBBLE_TRY(const std::string path, as_text(entry.value, fmt::format("import '{}'", entry.key)));
                NIBBLE_TRY(scope[entry.key], import_path(path, file, entry.value));
            }
        }
        std::erase_if(body.entries, [](const YamlEntry& entry) { return entry.key == "imports"; });
        return expand(body, scope);
    }

    Result<const YamlNode*> import_path(const std::string& path, const RecipeFile& from, const YamlNode& at) {
        if (!stays_below(path))
            return fail(
                "{}: import '{}': is not a relative path without '..'; imports must be in the recipe's folder or a "
                "folder above it",
                at.where(), path);
        std::optional<RecipeFile> found = find_builtin(path);
        for (fs::path folder = from.folder; !found && !folder.empty(); folder = folder.parent_path()) {
            NIBBLE_TRY(found, find_on_disk(folder / path));
            if (folder == folder.parent_path()) break;
        }
        if (!found)
            return fail("{}: no file '{}' to import: not built in{}", at.where(), path,
                        from.folder.empty() ? "" : fmt::format(", not below {}", from.folder.string()));
        auto [place, fresh] = files_.try_emplace(found->name);
        if (fresh || std::find(stack_.begin(), stack_.end(), found->name) != stack_.end()) {
            auto content = file(*found, true);
            if (!content.ok()) return std::move(content).error();
            place->second = *std::move(content);
        }
        return &place->second;
    }

    Result<YamlNode> expand(const YamlNode& node, const Scope& scope) {
        if (!node.is_map() && !node.is_list()) return copy(node);
        YamlNode result = node;
        result.items.clear();
        result.entries.clear();
        NIBBLE_CHECK(count(1, node));
        if (node.is_list()) {
            for (const YamlNode& item : node.items) NIBBLE_CHECK(expand_item(item, scope, result.items));
            return result;
        }
        if (const YamlNode* import = node.find("$import")) {
            NIBBLE_TRY(const auto contents, imported(*import, scope));
            for (const YamlNode* content : contents) {
                if (!content->is_map())
                    return fail("{}: '$import' inside a mapping needs a mapping; {} is not one", import->where(),
                                content->where());
                for (const YamlEntry& entry : content->entries) NIBBLE_CHECK(put(result, entry.key, entry.value));
            }
        }
        for (const YamlEntry& entry : node.entries) {
            if (entry.key == "$import") continue;
            NIBBLE_TRY(YamlNode value, expand(entry.value, scope));
            NIBBLE_CHECK(put(result, entry.key, std::move(value)));
        }
        return result;
    }

    Status expand_item(const YamlNode& item, const Scope& scope, std::vector<YamlNode>& out) {
        if (!item.is_map() || item.entries.size() != 1 || item.entries[0].key != "$import") {
            NIBBLE_TRY(YamlNode value, expand(item, scope));
            out.push_back(std::move(value));
            return Ok{};
        }
        NIBBLE_TRY(const auto contents, imported(item.entries[0].value, scope));
        for (const YamlNode* content : contents) {
            NIBBLE_CHECK(count(content->node_count(), item));
            if (content->is_list())
                out.insert(out.end(), content->items.begin(), content->items.end());
            else if (content->is_map())
                out.push_back(*content);
            else
                return fail("{}: {} is neither a list nor a mapping", item.where(), content->where());
        }
        return Ok{};
    }

    Result<std::vector<const YamlNode*>> imported(const YamlNode& value, const Scope& scope) {
        std::vector<const YamlNode*> contents;
        const std::vector<YamlNode> one = {value};
        for (const YamlNode& item : value.is_list() ? value.items : one) {
            NIBBLE_TRY(const std::string alias, as_text(item, "'$import'"));
            const auto found = scope.find(alias);
            if (found == scope.end()) {
                std::vector<std::string_view> known;
                for (const auto& [name, content] : scope) known.push_back(name);
                return fail("{}: '$import: {}' is not among the imports of this file ({})", item.where(), alias,
                            known.empty() ? "it has none" : fmt::format("{}", fmt::join(known, ", ")));
            }
            contents.push_back(found->second);
        }
        return contents;
    }

    Status put(YamlNode& map, const std::string& key, YamlNode value) {
        NIBBLE_CHECK(count(value.node_count(), value));
        for (YamlEntry& entry : map.entries)
            if (entry.key == key) {
                entry.value = std::move(value);
                return Ok{};
            }
        map.entries.push_back({key, std::move(value)});
        return Ok{};
    }

    Result<YamlNode> copy(const YamlNode& node) {
        NIBBLE_CHECK(count(1, node));
        return node;
    }

    Status count(size_t nodes, const YamlNode& at) {
        nodes_ += nodes;
        if (nodes_ > 4 * max_yaml_nodes) return fail("{}: imports expand to too many values", at.where());
        return Ok{};
    }

    std::vector<std::string> stack_;
    std::map<std::string, YamlNode> files_;  // by name, so that a file imported twice is read once; addresses of nodes
                                             // stay valid
    size_t nodes_ = 0;
};

}  // namespace

std::optional<RecipeFile> find_builtin(std::string_view path) {
    // Versions of Model Optimizer publish different paths; both are accepted.
    if (path.starts_with("models/"))
        if (auto found = find_builtin(fmt::format("huggingface/{}", path))) return found;
    for (std::string_view suffix : suffixes) {
        const std::string name = fmt::format("{}{}", path, suffix);
        for (const EmbeddedFile& file : recipes_embedded())
            if (file.path == name && (name.ends_with(".yaml") || name.ends_with(".yml")))
                return RecipeFile{fmt::format("recipes/{}", name), std::string(file.content), {}};
    }
    return std::nullopt;
}

bool is_builtin(std::string_view name) {
    constexpr std::string_view tree = "recipes/";
    return name.starts_with(tree) && std::ranges::find(recipes_embedded(), name.substr(tree.size()),
                                                       &EmbeddedFile::path) != recipes_embedded().end();
}

Result<std::optional<RecipeFile>> find_on_disk(const fs::path& path) {
    for (std::string_view suffix : suffixes) {
        const fs::path candidate = path.string() + std::string(suffix);
        std::error_code error;
        if (!fs::is_regular_file(candidate, error)) continue;
        const auto size = fs::file_size(candidate, error);
        if (!error && size > max_yaml_bytes)
            return fail("{}: {} bytes; a recipe has at most {}", candidate.string(), size, max_yaml_bytes);
        NIBBLE_TRY(std::string text, read_text_file(candidate, max_yaml_bytes));
        return std::optional(RecipeFile{candidate.lexically_normal().string(), std::move(text),
                                        fs::absolute(candidate).lexically_normal().parent_path()});
    }
    return std::optional<RecipeFile>();
}

Result<YamlNode> flatten(const RecipeFile& file) { return Flattener().file(file, false); }

}  // namespace nibble
