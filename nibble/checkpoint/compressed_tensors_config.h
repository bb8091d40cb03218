// quantization_config as compressed-tensors writes it: groups of modules, each with how its weights and inputs are
// quantized. Source: compressed-tensors 0.20 (quantization/quant_args.py, quant_scheme.py, quant_config.py).
#pragma once

#include "checkpoint/stored_parts.h"
#include "text/python_regex.h"

#include <optional>
#include <string>
#include <vector>

namespace nibble {

// Weights of integers, for which nibble has no Format: they are decoded as they are read.
struct IntegerCodes {
    int bits = 4;       // 4 or 8
    int64_t group = 0;  // inputs under one scale; 0: a row, or the whole matrix
};

struct CompressedTensorsScheme {
    Scheme scheme;
    std::optional<IntegerCodes> integers;  // then `scheme` is empty
    std::string_view format;               // "nvfp4-pack-quantized"
    bool static_outputs = false;  // FP8 under a stored scale: the KV cache, when the modules are k_proj and v_proj
};

// The schemes of known presets. Error: anything else, naming the key and its value.
Result<CompressedTensorsScheme> parse_group(const Json& group, const Json& outer_format);

// The value of "format" for a scheme; empty when compressed-tensors has none for it.
std::string_view compressed_tensors_format(Scheme scheme);

// Which modules a list of targets or of exceptions means: exact names, "re:" patterns matched from the start of the
// name (Python's re.match), and the class "Linear", which is every quantized module here.
class ModuleTargets {
public:
    // Error: a pattern that Python refuses or that cannot be run as Python runs it.
    static Result<ModuleTargets> make(const std::vector<std::string>& targets);

    // How the module is meant; compressed-tensors prefers the smaller number when groups compete. Error: a pattern that
    // takes too many steps.
    enum Kind { by_name = 0, by_pattern = 1, by_class = 2, not_meant = 3 };
    Result<Kind> match(std::string_view module) const;
    // Returns whether the list names the module under any name that a loader looks for (loader_names).
    Result<bool> means(std::string_view module) const;
    const std::vector<std::string>& names() const { return names_; }
    bool has_class() const { return linear_; }

private:
    std::vector<std::string> names_;  // sorted
    std::vector<PythonRegex> patterns_;
    bool linear_ = false;
};

}  // namespace nibble
