// Recipes of NeMo RL as YAML: their `defaults`, and the values that OmegaConf puts in.
#pragma once

#include "io/yaml.h"

#include <filesystem>
#include <string>
#include <string_view>

namespace nibble {

// The recipe over the files that its `defaults` name, which lie in the same folder.
Result<YamlNode> read_nemo_recipe(const std::filesystem::path& file);
// Makes relative references absolute: ${.a} is ${b.a} in the map b, ${..a} is a key of the map that holds b.
void make_nemo_absolute(YamlNode& node, const std::string& path);

// The node at "a.b.c", or null.
const YamlNode* nemo_node(const YamlNode& root, std::string_view path);

enum class NemoQuotes : uint8_t { none, yaml };
// The value with references put in, as YAML, or without quotes, as it is compared.
std::string nemo_text(const YamlNode& node, const YamlNode& root, NemoQuotes quotes);
// As numbers where both are some, as words otherwise; True is true.
bool same_nemo_value(std::string a, std::string b);

}  // namespace nibble
