// Classifies a checkpoint's tensors into the modules that recipes and lists of excluded modules name: which tensors are
// weights of linears, what the others are and why they stay as they are, and which linears engines fuse.
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
    conv,           // nn.Conv1d/2d/3d: carries quantizers, but stays as it is, as in Model Optimizer
    matrix,         // 2-D weight that is not known as a linear's: stays as it is
    router,         // gate of a mixture of experts: never quantized, listed as excluded
    fused_experts,  // matrices of all experts in one 3-D tensor that the checkpoint could not split
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
    // Linears that an engine runs as one matrix, so they need one format and one scale of each kind: q/k/v, gate/up,
    // w1/w3, q_a/kv_a of latent attention, in_proj_qkv/z and in_proj_b/a of gated delta nets.
    std::string fused;
    std::string search;  // q/k/v, gate/up, w1/w3: they share the maximum inside a search
    // The fused groups that see the same inputs: Model Optimizer gives them one tensor scale.
    std::string scale;
    std::string input;  // they share input_scale: `scale`, and all routed experts of a layer (compat)
};
ModuleGroups groups_of(const Module& module);

// The fused groups with at least two members, as indices into `modules`, in the order of their first members.
std::vector<std::vector<size_t>> fused_groups(std::span<const Module> modules);

// A row of the table that groups_of() reads.
struct FusedGroup {
    std::vector<std::string_view> members;
    std::string_view engine_name;   // name of the one module that engines make of them; empty: they keep the members'
    std::string_view fused, scale;  // as in ModuleGroups, without the parent; fused is empty for one that stands alone
    bool searched = false;
};
std::span<const FusedGroup> fused_group_table();

// Whether the name is of a vision or audio tower, or of what joins one to the text model.
bool beside_the_text(std::string_view name);

// "model.layers.*.conv.conv" of "model.layers.3.conv.conv": one name for the same module of all layers and experts.
std::string module_kind_name(std::string_view name);

// Place of a linear among those of its fused group in the order in which a model runs them: 0 for q, gate, w1,
// in_proj_qkv.
int order_in_group(const Module& module);

}  // namespace nibble
