// Recipes: Model Optimizer's YAML, read into values. What a recipe means for a checkpoint is quant/resolve.h.
//
// A recipe is an ordered list of rules on quantizer names ("model.layers.0.mlp.up_proj.weight_quantizer") and a list of
// algorithms. Rules apply top to bottom, the last match wins; a rule with a cfg replaces every attribute, one without
// only toggles. Imports are resolved here: a Recipe is flat, and each rule knows the file and line it came from.
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
std::string to_string(const NumBits& bits);  // "e4m3", "int8"

// Attributes of one quantizer, Model Optimizer's names and defaults.
struct QuantizerConfig {
    NumBits num_bits;
    std::optional<std::vector<int>> axis;
    bool dynamic = false;                           // type: dynamic (nothing is calibrated)
    std::map<int, std::optional<int>> block_sizes;  // axis (-1 is the last) -> size, empty: the whole axis
    bool dynamic_blocks = false;                    // block_sizes.type
    std::optional<NumBits> scale_bits;              // block_sizes.scale_bits
    bool four_over_six = false;
    bool use_constant_amax = false;      // amax 448, nothing stored
    std::optional<float> constant_amax;  // stored, nothing calibrated
    std::optional<double> effective_bits;
    std::vector<std::string> unsupported;  // attributes set to something nibble does not do

    bool operator==(const QuantizerConfig&) const = default;
};

struct Rule {
    std::string pattern;               // quantizer_name, fnmatch
    std::string parent_class;          // "nn.Embedding"; empty: any
    std::vector<QuantizerConfig> cfg;  // empty: only toggles; two: quantizers in sequence
    bool enable = true;
    std::string where;      // "file.yaml:12"
    bool imported = false;  // from a file other than the recipe itself (a unit)
    bool builtin = false;   // from a file of nibble's own; such files name the modules of every architecture
};

// One entry of `algorithm`. Methods nibble cannot run yet are kept, and refused when they are resolved.
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
    float alpha_step = 0.1f;               // of awq_lite
    WeightSolver solver;                   // of the methods that look at activations to choose codes
    std::vector<std::string> unsupported;  // options set to something that would change the result
    std::string where;
};
std::string_view method_name(Algorithm::Method method);

struct Recipe {
    std::string name;  // as asked for: "nvfp4", "my/recipe.yaml"
    std::string description;
    std::vector<Rule> rules;
    std::vector<Algorithm> algorithms;
};

// A preset's base name ("nvfp4") in any of its spellings, a path in the built-in tree
// ("general/ptq/nvfp4_default-kv_fp8") or a file or folder of the file system (.yaml may be left out); tried in this
// order.
Result<Recipe> load_recipe(std::string_view name_or_path);
// Rules of a KV cache preset ("fp8", "fp8_cast", "nvfp4", "nvfp4_cast" ...); "none" turns the quantizers off.
Result<std::vector<Rule>> load_kv_rules(std::string_view preset);
// `text` as if it were the file `file`; its imports are looked up like those of a file in `folder`.
Result<Recipe> parse_recipe(std::string_view text, std::string_view file, const std::filesystem::path& folder = {});

// The preset that a name of Model Optimizer stands for, in any case: "NVFP4_DEFAULT_CFG" -> "nvfp4", "mxfp8_cfg" ->
// "mxfp8". What is no such name is handed back.
std::string preset_of_spelling(std::string_view name);

// Error: neither a preset (in any spelling) nor built in nor a file or folder; names the nearest preset. Reads nothing.
Result<std::string> check_recipe_name(std::string_view name);

std::vector<std::string> preset_names();
std::vector<std::string> kv_preset_names();

}  // namespace nibble
