// quantization_config as compressed-tensors writes it: groups of modules, each with how its weights and inputs are
// quantized. Source: compressed-tensors 0.20 (quantization/quant_args.py, quant_scheme.py, quant_config.py).
#pragma once

#include "checkpoint/stored_parts.h"

#include <memory>
#include <string>
#include <vector>

namespace nibble {

struct CompressedTensorsScheme {
    Scheme scheme;
    std::string_view format;  // "nvfp4-pack-quantized"
};

// The schemes of known presets. Error: anything else, naming the key and its value.
Result<CompressedTensorsScheme> parse_group(const Json& group, const Json& outer_format);

// The value of "format" for a scheme; empty when compressed-tensors has none for it.
std::string_view compressed_tensors_format(Scheme scheme);

// Which modules a list of targets means: exact names, "re:" patterns matched from the start of the name (Python's
// re.match), and the class "Linear", which is every quantized module here.
class ModuleTargets {
public:
    static Result<ModuleTargets> make(const std::vector<std::string>& targets);
    ModuleTargets();
    ModuleTargets(ModuleTargets&&) noexcept;
    ModuleTargets& operator=(ModuleTargets&&) noexcept;
    ~ModuleTargets();

    // How the module is meant; compressed-tensors prefers the smaller number when groups compete.
    enum Kind { by_name = 0, by_pattern = 1, by_class = 2, not_meant = 3 };
    Kind match(std::string_view module) const;
    const std::vector<std::string>& names() const { return names_; }
    bool has_class() const { return linear_; }

private:
    struct Patterns;
    std::vector<std::string> names_;  // sorted
    std::unique_ptr<Patterns> patterns_;
    bool linear_ = false;
};

}  // namespace nibble
