// Reads NeMo RL recipes as YAML, with their `defaults` and OmegaConf's substitutions.
#pragma once

#include "io/yaml.h"

#include <filesystem>
#include <string>
#include <string_view>

namespace nibble {

// Reads the recipe over the files that its `defaults` name. These lie in the same folder.
Result<YamlNode> read_nemo_recipe(const std::filesystem::path& file);
// Makes relative references absolute: in the map b, ${.a} becomes ${b.a}; ${..a} refers to a key of the map that
// contains b.
void make_nemo_absolute(YamlNode& node, const std::string& path);

// Returns the node at "a.b.c", or null.
const YamlNode* nemo_node(const YamlNode& root, std::string_view path);

enum class NemoQuotes : uint8_t { none, yaml };
// Returns the value with references substituted: as YAML, or without quotes for comparisons.
std::string nemo_text(const YamlNode& node, const YamlNode& root, NemoQuotes quotes);
// Compares values as numbers if both are numbers, otherwise as words. True equals true.
bool same_nemo_value(std::string a, std::string b);

}  // namespace nibble
