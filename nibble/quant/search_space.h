// The choices of a mixed-precision search: groups of linears that get the same format, the possible formats of each
// group, and their costs. Definitions follow Model Optimizer's auto_quantize:
//
//   group   q/k/v of a layer; gate/up of an MLP; all routed experts of a layer; the shared experts of a layer; other
//           linears that engines fuse (groups_of in checkpoint/modules.h); any other linear alone. If one member must
//           stay unquantized, so does its group.
//   bits    of a format: effective_bits of its numerics if given, else 1 + exponent + mantissa bits; 16 for unquantized
//           linears. nvfp4 4.5, fp8 8, mxfp4 4.
//   cost    elements * bits * weight. The effective bits of a choice are its cost divided by the sum of elements *
//           weight over every linear of the model, including those that the search may not change. Embeddings, norms
//           and the matrices in `cost_excluded` do not count.
//   weight  1; with active_moe, for routed experts, the share of experts that a token uses.
#pragma once

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "quant/plan.h"
#include "quant/resolve.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct SearchFormat {
    std::string name;             // "nvfp4", "w4a16_nvfp4", "fp8" ...; "none": unquantized
    std::string weights, inputs;  // names in configs/numerics of the two quantizers; empty: no quantizer
    int64_t millibits = 16000;    // cost of a weight in 1/1000 bit
    double bits() const { return double(millibits) / 1000; }
};

// Returns the format of a name. Error: an unknown name, with the list of names.
Result<SearchFormat> search_format(std::string_view name);
std::vector<std::string> search_format_names();

struct SearchGroup {
    std::string name;                   // "model.layers.0.self_attn.{q,k,v}", "model.layers.0.mlp.experts"
    std::vector<size_t> tensors;        // indices of the members' weights
    std::vector<std::string> patterns;  // patterns that match the quantizers of exactly these members, without
                                        // "weight_quantizer"
    int64_t elements = 0;               // elements of all members
    int64_t weight = 1;                 // weight of an element in units of SearchSpace::weight_unit; 0: not counted
    std::vector<size_t> candidates;     // indices of SearchSpace::formats, by rising bits; at least one
    std::string fixed;                  // why there is no choice; empty: there is one
};

struct SearchSpace {
    std::vector<SearchFormat> formats;  // by rising bits, "none" is the last
    std::vector<SearchGroup> groups;    // in the order of their first tensors
    int64_t weight_unit = 1;

    size_t none() const { return formats.size() - 1; }
    // Returns elements * weight of all groups, or of one group, divided by the common divisor of all.
    int64_t units() const;
    int64_t units(size_t group) const;
    int64_t cost(size_t group, size_t format) const { return units(group) * formats[format].millibits; }
    // choice: an index of formats per group.
    double bits(std::span<const size_t> choice) const;
    double least_bits() const;
    double most_bits() const;
};

struct Keep {
    std::string pattern;  // fnmatch on module names
    std::string format;   // a search_format name
};
// Parses "PATTERN=FORMAT". Error: another form.
Result<Keep> parse_keep(std::string_view text);

enum class CostModel : uint8_t { weights, active_moe };

struct SearchSpaceOptions {
    std::vector<std::string> formats = {"nvfp4", "fp8"};  // "none" is added
    std::vector<Keep> keep;                               // the last one that matches a group counts
    CostModel cost_model = CostModel::weights;
};

// Returns the space. As in auto_quantize, routers, small convolutions, gates and vision towers stay unquantized; the
// output head may be quantized. Errors: an unknown format, a --keep that matches no linear or whose format is not
// possible, active_moe without experts, a model without a linear.
Result<SearchSpace> search_space(std::span<const CheckpointTensor> tensors, const Json& config,
                                 const SearchSpaceOptions& options);

}  // namespace nibble
