// From a checkpoint's tensors to the modules a recipe speaks about: which tensors are weights of linears, what the
// others are and why they stay as they are, who is fused with whom.
//
// Names are those of the checkpoint (one matrix per expert). Model Optimizer 0.47 under transformers 5 sees a layer's
// experts as fused 3-D tensors instead; where that changes stored bytes, the groups below say so ("compat").
#pragma once

#include "base/json.h"
#include "checkpoint/checkpoint.h"

#include <span>
#include <string>
#include <vector>

namespace nibble {

enum class ModuleKind : uint8_t {
    linear,         // nn.Linear: weight [out, in]
    embedding,      // nn.Embedding
    conv,           // nn.Conv1d/2d/3d: carries quantizers, but nibble keeps it as it is
    router,         // gate of a mixture of experts: never quantized, listed as excluded
    fused_experts,  // matrices in one 3-D tensor that the checkpoint could not split
    carried,        // norms, biases, state-space parameters, copied layers ...: no quantizers
};

struct Module {
    std::string name;  // "model.layers.0.mlp.up_proj"
    ModuleKind kind = ModuleKind::carried;
    std::string_view parent_class;  // "nn.Linear"; empty when no class of nn
    std::string why;                // carried: the reason; fused_experts: why they could not be split, if known
    bool listed = false;            // named in exclude_modules while it is not quantized
    bool routed_expert = false;     // ".experts.E." lies in the name

    bool has_quantizers() const { return kind != ModuleKind::carried; }
};

struct ModelModules {
    std::vector<Module> modules;          // one per tensor, in the tensors' order
    std::vector<std::string> attention;   // modules with a KV cache: "model.layers.0.self_attn", in order of layers
    std::vector<std::string> tied_heads;  // "lm_head" when it has no tensor of its own: listed as excluded
};

// `config`: config.json; null is allowed (then nothing is known about tied heads and copied layers).
ModelModules find_modules(std::span<const CheckpointTensor> tensors, const Json& config);

// Keys of the groups a linear belongs to, empty for a linear that stands alone. Members have equal keys.
struct ModuleGroups {
    std::string fused;  // linears an engine runs as one: q/k/v, gate/up, MLA's and linear attention's input projections
    std::string search;  // the subset that shares its maximum in a search: q/k/v, gate/up, w1/w3
    std::string
        input;  // linears that see the same inputs, hence one input_scale; all routed experts of a layer (compat)
};
ModuleGroups groups_of(const Module& module);

// Place of a linear among those of its fused group in the order in which a model runs them: 0 for q, gate, w1,
// in_proj_qkv.
int order_in_group(const Module& module);

}  // namespace nibble
