// The list of modules that stay unquantized, as Model Optimizer writes it: shortened to prefixes where everything below
// one is unquantized. Also what such a list means when read.
#pragma once

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

// Exact names, "p*" and "p.*".
class ModulePatterns {
public:
    explicit ModulePatterns(std::span<const std::string> patterns);
    bool matches(std::string_view module) const;

private:
    std::set<std::string, std::less<>> exact_;
    std::vector<std::string> prefixes_;
};

}  // namespace nibble
