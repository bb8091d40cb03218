// Lists of modules that stay unquantized: how Model Optimizer shortens them when it writes one, and how loaders (vLLM,
// SGLang, compressed-tensors) read them.
#pragma once

#include "checkpoint/fnmatch.h"

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// For each unquantized module, the shortest dot-prefix p for which "p*" (nothing quantized starts with these
// characters) or else "p.*" (nothing quantized is p or lies below it) holds, or the full name. Sorted as Model
// Optimizer does: by the names transformers uses at run time, where Nemotron-H's "backbone." is "model.".
std::vector<std::string> compress_exclude_modules(std::span<const std::string> unquantized,
                                                  std::span<const std::string> quantized);

// The names under which loaders look for a module in a list, its own first: the module that engines make of it and its
// partners ("self_attn.qkv_proj"), the container of experts ("mlp.experts"), the router's name in transformers, and
// each of these under the other roots of a multimodal model ("language_model.model.", "model.language_model.").
std::vector<std::string> loader_names(std::string_view module);

// exclude_modules of Model Optimizer: shell wildcards over whole names (Python's fnmatch).
class ModulePatterns {
public:
    explicit ModulePatterns(std::span<const std::string> patterns);
    // Under exactly this name.
    bool matches(std::string_view module) const;
    // Under any name that a loader looks for.
    bool names(std::string_view module) const;

private:
    std::set<std::string, std::less<>> exact_;
    std::vector<std::string> prefixes_;   // of entries whose only wildcard is a last '*'
    std::vector<NamePattern> wildcards_;  // all others
};

}  // namespace nibble
