// Parses flat YAML into Recipe values: checks types and keys, and applies Model Optimizer's defaults and exclusions.
// Errors name file, line and key.
#pragma once

#include "io/yaml.h"
#include "quant/recipe.h"

namespace nibble {

Result<QuantizerConfig> parse_quantizer_config(const YamlNode& node);
// `root`: the recipe's own file; rules of other files are marked as imported.
Result<std::vector<Rule>> parse_rules(const YamlNode& list, std::string_view root);
Result<std::vector<Algorithm>> parse_algorithms(const YamlNode& node);

}  // namespace nibble
