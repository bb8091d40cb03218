// Finds recipe files and resolves their imports.
//
//   imports: {alias: path}        `path` without .yaml: searched first in the built-in tree, then in the importing
//                                 file's folder and the folders above it (so a file of a recipe tree finds the tree's
//                                 root)
//   $import: alias | [aliases]    inside a mapping: merged, later aliases override earlier ones, inline keys override
//                                 all; only the top level is merged
//   - $import: alias              in a list: a list is inserted, a mapping appended
//
// Imported files declare their kind in a comment `# modelopt-schema: ...`. Lists with imports are two YAML documents.
#pragma once

#include "io/yaml.h"

#include <filesystem>
#include <optional>

namespace nibble {

struct RecipeFile {
    std::string name;  // name for messages: "recipes/configs/numerics/nvfp4.yaml", or the path as given
    std::string text;
    std::filesystem::path folder;  // folder of the file; empty: a built-in file
};

// Returns a file of the built-in tree; the endings .yaml and .yml are tried.
std::optional<RecipeFile> find_builtin(std::string_view path);
// Returns true if `name` is the RecipeFile::name of a built-in file.
bool is_builtin(std::string_view name);
// Returns a file of the file system; no value: there is no such file. Error: it cannot be read.
Result<std::optional<RecipeFile>> find_on_disk(const std::filesystem::path& path);

// Returns the file's content with imports resolved. Mappings and lists keep the file and line where they were written.
// Errors: a missing file, an import cycle, a YAML error; with file and line.
Result<YamlNode> flatten(const RecipeFile& file);

}  // namespace nibble
