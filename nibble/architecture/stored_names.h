// Names of tensors in the spelling of a checkpoint. Published files, transformers' class of a whole model and
// transformers' class of its text part name the same tensor differently:
//   layers.0.block_sparse_moe.experts.3.w1.weight, layers.0.mlp.experts.3.gate_proj.weight
//   language_model.lm_head.weight, lm_head.weight
// A family's table (architecture/families/) has the published spelling.
#pragma once

#include "architecture/model_config.h"

#include <string>
#include <string_view>
#include <vector>

namespace nibble {

class StoredNames {
public:
    explicit StoredNames(std::vector<std::string_view> tensors);

    bool has(std::string_view tensor) const;
    bool has_prefix(std::string_view prefix) const;
    // Returns whether a tensor belongs to the module or to a module inside it: its name begins with "MODULE.".
    bool has_module(std::string_view module) const { return has_prefix(std::string(module) + "."); }

private:
    std::vector<std::string_view> names_;  // sorted
};

// Replaces each name of the description that `stored` lacks by its other spelling, if `stored` has that one. Names that
// are missing in every spelling stay as they are.
void use_stored_names(ModelConfig& model, const StoredNames& stored);

}  // namespace nibble
