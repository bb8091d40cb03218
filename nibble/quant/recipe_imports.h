// Finding recipe files, and flattening their imports.
//
//   imports: {alias: path}        `path` without .yaml: first in the built-in tree, then below the importing file's
//   folder
//                                 and the folders above it (so a file of a recipe tree finds the tree's root)
//   $import: alias | [aliases]    inside a mapping: merged, later aliases over earlier, inline keys over all; shallow
//   - $import: alias              in a list: a list is spliced, a mapping appended
//
// Imported files say what they are in a comment `# modelopt-schema: ...`. Lists that import are two YAML documents.
#pragma once

#include "io/yaml.h"

#include <filesystem>
#include <optional>

namespace nibble {

struct RecipeFile {
    std::string name;  // for messages: "recipes/configs/numerics/nvfp4.yaml" or the path as given
    std::string text;
    std::filesystem::path folder;  // where it lies; empty for built-in files
};

// One of the built-in tree; .yaml and .yml are tried.
std::optional<RecipeFile> find_builtin(std::string_view path);
// Whether `name` is a RecipeFile::name of the built-in tree.
bool is_builtin(std::string_view name);
// The same in the file system; nothing when there is no such file.
Result<std::optional<RecipeFile>> find_on_disk(const std::filesystem::path& path);

// The file's content without imports. Mappings and lists from other files keep their file and line.
Result<YamlNode> flatten(const RecipeFile& file);

}  // namespace nibble
