// Lists of modules that stay unquantized: how Model Optimizer shortens them for writing, and how loaders (vLLM, SGLang,
// compressed-tensors) read them.
#pragma once

#include "checkpoint/fnmatch.h"

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// Returns, for each unquantized module, its shortest dot-separated prefix p for which "p*" matches no quantized module,
// else "p.*" if this matches none, else the full name. The order is that of Model Optimizer: by the run-time names of
// transformers, in which Nemotron-H's "backbone." is "model.".
std::vector<std::string> compress_exclude_modules(std::span<const std::string> unquantized,
                                                  std::span<const std::string> quantized);

// Returns the names under which loaders look for a module in a list, its own name first: the module into which engines
// fuse it ("self_attn.qkv_proj"), the container of experts ("mlp.experts"), the router's name in transformers, and each
// of these under the other roots of a multimodal model ("language_model.model.", "model.language_model.").
std::vector<std::string> loader_names(std::string_view module);

// The exclude_modules of Model Optimizer: shell wildcards over whole names (Python's fnmatch).
class ModulePatterns {
public:
    explicit ModulePatterns(std::span<const std::string> patterns);
    // Returns true if an entry matches exactly this name.
    bool matches(std::string_view module) const;
    // Returns true if an entry matches any name that a loader uses for the module.
    bool names(std::string_view module) const;

private:
    std::set<std::string, std::less<>> exact_;
    std::vector<std::string> prefixes_;   // prefixes of entries whose only wildcard is a final '*'
    std::vector<NamePattern> wildcards_;  // all other entries with wildcards
};

}  // namespace nibble
