// The quantization_config of compressed-tensors: groups of modules with the quantization of their weights and inputs.
// Source: compressed-tensors 0.20 (quantization/quant_args.py, quant_scheme.py, quant_config.py).
#pragma once

#include "checkpoint/stored_parts.h"
#include "text/python_regex.h"

#include <optional>
#include <string>
#include <vector>

namespace nibble {

// Integer weights. Those that Format::int4 cannot hold are decoded while they are read.
struct IntegerCodes {
    int bits = 4;           // 4 or 8
    int64_t group = 0;      // number of inputs per scale; 0: one scale per row or per matrix
    bool symmetric = true;  // false: weight_zero_point is subtracted from the codes
};

struct CompressedTensorsScheme {
    Scheme scheme;
    std::optional<IntegerCodes> integers;  // if set, `scheme` is empty
    std::string_view format;               // "nvfp4-pack-quantized"
    bool static_outputs = false;  // FP8 outputs with a stored scale: for k_proj and v_proj, this is the KV cache
};

// Returns the scheme of a group; it must be a known preset. Error: anything else, with key and value.
Result<CompressedTensorsScheme> parse_group(const Json& group, const Json& outer_format);

// Returns the value of "format" for a scheme; empty: compressed-tensors has no name for it.
std::string_view compressed_tensors_format(Scheme scheme);

// The modules that a list of targets or exceptions names: exact names, "re:" patterns matched from the start of the
// name (Python's re.match), and the class "Linear", which stands for every quantized module.
class ModuleTargets {
public:
    // Error: a pattern that Python rejects, or that cannot be matched as in Python.
    static Result<ModuleTargets> make(const std::vector<std::string>& targets);

    // Returns how the list names the module. If groups compete, compressed-tensors prefers the smaller number. Error: a
    // pattern that needs too many steps.
    enum Kind { by_name = 0, by_pattern = 1, by_class = 2, not_meant = 3 };
    Result<Kind> match(std::string_view module) const;
    // Returns whether the list contains the module under any name that a loader uses (loader_names).
    Result<bool> means(std::string_view module) const;
    const std::vector<std::string>& names() const { return names_; }
    bool has_class() const { return linear_; }

private:
    std::vector<std::string> names_;  // sorted
    std::vector<PythonRegex> patterns_;
    bool linear_ = false;
};

}  // namespace nibble
