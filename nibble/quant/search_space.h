// What a mixed-precision search chooses between: groups of linears that take one format, the formats each may take, and
// what they cost. Definitions are Model Optimizer's auto_quantize:
//
//   group   q/k/v of a layer; gate/up of an MLP; all routed experts of a layer; the shared experts of a layer; linears
//           that engines fuse otherwise (groups_of in checkpoint/modules.h); any other linear alone. One member that
//           must stay as it is keeps its group.
//   bits    of a format: effective_bits of its numerics if given, else 1 + exponent + mantissa bits; 16 when a linear
//           stays as it is. nvfp4 4.5, fp8 8, mxfp4 4.
//   cost    elements * bits * weight. Effective bits of a choice: its cost over sum of elements * weight, over every
//           linear of the model, also those the search must leave alone; embeddings, norms and the matrices of
//           `cost_excluded` do not count.
//   weight  1; with active_moe, for routed experts, the share of them a token visits.
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
    std::string name;             // "nvfp4", "w4a16_nvfp4", "fp8" ...; "none": a linear stays as it is
    std::string weights, inputs;  // configs/numerics/NAME of the two quantizers; empty: none
    int64_t millibits = 16000;    // the cost of a weight, in 1/1000 bit
    double bits() const { return double(millibits) / 1000; }
};

// Errors list the names.
Result<SearchFormat> search_format(std::string_view name);
std::vector<std::string> search_format_names();

struct SearchGroup {
    std::string name;                   // "model.layers.0.self_attn.{q,k,v}", "model.layers.0.mlp.experts"
    std::vector<size_t> tensors;        // indices of the members' weights
    std::vector<std::string> patterns;  // that quantizers of just these match, without "weight_quantizer"
    int64_t elements = 0;               // of all members
    int64_t weight = 1;                 // of an element, over SearchSpace::weight_unit; 0: not counted
    std::vector<size_t> candidates;     // indices of SearchSpace::formats, by rising bits; at least one
    std::string fixed;                  // why there is no choice; empty where there is one
};

struct SearchSpace {
    std::vector<SearchFormat> formats;  // by rising bits, "none" is the last
    std::vector<SearchGroup> groups;    // in the order of their first tensors
    int64_t weight_unit = 1;

    size_t none() const { return formats.size() - 1; }
    // elements * weight of all groups, divided by their common divisor; of one group likewise.
    int64_t units() const;
    int64_t units(size_t group) const;
    int64_t cost(size_t group, size_t format) const { return units(group) * formats[format].millibits; }
    // Per group an index of formats.
    double bits(std::span<const size_t> choice) const;
    double least_bits() const;
    double most_bits() const;
};

struct Keep {
    std::string pattern;  // fnmatch on module names
    std::string format;   // a search_format name
};
// "PATTERN=FORMAT"
Result<Keep> parse_keep(std::string_view text);

enum class CostModel : uint8_t { weights, active_moe };

struct SearchSpaceOptions {
    std::vector<std::string> formats = {"nvfp4", "fp8"};  // "none" joins them
    std::vector<Keep> keep;                               // of several that match a group the last counts
    CostModel cost_model = CostModel::weights;
};

// Linears the search leaves alone, as auto_quantize's base list: routers, small convolutions, gates, vision towers.
// The output head is not among them. Errors: an unknown format, a --keep that matches no linear or whose format does
// not fit, active_moe without experts, a model without a linear.
Result<SearchSpace> search_space(std::span<const CheckpointTensor> tensors, const Json& config,
                                 const SearchSpaceOptions& options);

}  // namespace nibble
