// Recipes: parses Model Optimizer's YAML into values. quant/resolve.h applies a recipe to a checkpoint.
//
// A recipe is an ordered list of rules on quantizer names ("model.layers.0.mlp.up_proj.weight_quantizer") and a list of
// algorithms. Rules apply from top to bottom, and the last match wins. A rule with a cfg replaces every attribute; one
// without only enables or disables. Imports are resolved here; each rule knows the file and line where it is written.
#pragma once

#include "base/error.h"
#include "quant/weight_solver.h"

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// Integer bits, or a small float (e2m1: exponent 2, mantissa 1; then integer == 0).
struct NumBits {
    int integer = 8, exponent = 0, mantissa = 0;
    bool is_float(int e, int m) const { return integer == 0 && exponent == e && mantissa == m; }
    bool operator==(const NumBits&) const = default;
};
std::string to_string(const NumBits& bits);  // returns "e4m3", "int8"

// Attributes of one quantizer, with Model Optimizer's names and defaults.
struct QuantizerConfig {
    NumBits num_bits;
    std::optional<std::vector<int>> axis;
    bool dynamic = false;                           // type: dynamic (nothing is calibrated)
    std::map<int, std::optional<int>> block_sizes;  // axis (-1 is the last) -> size; no value: the whole axis
    bool dynamic_blocks = false;                    // block_sizes.type
    std::optional<NumBits> scale_bits;              // block_sizes.scale_bits
    bool four_over_six = false;
    bool use_constant_amax = false;      // the maximum is 448, and no scale is stored
    std::optional<float> constant_amax;  // this maximum is stored, and nothing is calibrated
    std::optional<double> effective_bits;
    std::vector<std::string> unsupported;  // attributes with values that nibble does not support

    bool operator==(const QuantizerConfig&) const = default;
};

struct Rule {
    std::string pattern;               // quantizer_name, fnmatch
    std::string parent_class;          // "nn.Embedding"; empty: any
    std::vector<QuantizerConfig> cfg;  // empty: the rule only toggles; two: quantizers in sequence
    bool enable = true;
    std::string where;      // "file.yaml:12"
    bool imported = false;  // comes from an imported file, not from the recipe itself
    bool builtin = false;   // comes from a built-in file; such files name the modules of every architecture
};

// One entry of `algorithm`. Methods that nibble does not support are parsed, and rejected when the recipe is resolved.
struct Algorithm {
    enum class Method : uint8_t {
        none,
        max,
        mse,
        local_hessian,
        gptq,
        nibble_best,
        awq_lite,
        awq_clip,
        awq_full,
        smoothquant,
        svdquant,
        nvfp4_act_headroom,
        lsq
    } method = Method::max;
    float start = 0.25f, stop = 4.0f, step = 0.1f;
    bool fp8_scale_sweep = false;
    float alpha_step = 0.1f;               // for awq_lite
    WeightSolver solver;                   // for the methods that use activations to choose codes
    std::vector<std::string> unsupported;  // options with unsupported values that would change the result
    std::string where;
};
std::string_view method_name(Algorithm::Method method);

struct Recipe {
    std::string name;  // name as requested: "nvfp4", "my/recipe.yaml"
    std::string description;
    std::vector<Rule> rules;
    std::vector<Algorithm> algorithms;
};

// Loads a recipe. `name_or_path` is, in the order of trials: a preset's name ("nvfp4") in any of its spellings, a path
// in the built-in tree ("general/ptq/nvfp4_default-kv_fp8"), or a file or folder (.yaml may be omitted). Errors: an
// unknown name (with the nearest preset), a YAML or schema error with file and line.
Result<Recipe> load_recipe(std::string_view name_or_path);
// Loads the rules of a KV cache preset ("fp8", "fp8_cast", "nvfp4", "nvfp4_cast" ...); "none" turns the quantizers off.
// Error: an unknown preset.
Result<std::vector<Rule>> load_kv_rules(std::string_view preset);
// Parses `text` as the contents of `file`; imports are searched relative to `folder`. Errors: file and line.
Result<Recipe> parse_recipe(std::string_view text, std::string_view file, const std::filesystem::path& folder = {});

// Returns a rule that keeps the module of this name (or of the tensor, "....weight") and all modules below it
// unquantized.
Rule ignore_rule(std::string module);

// Returns the preset for a name of Model Optimizer, in upper or lower case: "NVFP4_DEFAULT_CFG" -> "nvfp4", "mxfp8_cfg"
// -> "mxfp8". Returns other names unchanged.
std::string preset_of_spelling(std::string_view name);

// Error: the name is neither a preset (in any spelling) nor a built-in path, file or folder; suggests the nearest
// preset. Reads no file.
Result<std::string> check_recipe_name(std::string_view name);

std::vector<std::string> preset_names();
std::vector<std::string> kv_preset_names();

}  // namespace nibble
