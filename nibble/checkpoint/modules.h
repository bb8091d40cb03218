// Classifies a checkpoint's tensors into the modules that recipes and lists of excluded modules name: weights of
// linears, other tensors (with the reason why they stay unquantized), and linears that engines fuse.
//
// Names are those of the checkpoint (one matrix per expert). Model Optimizer 0.47 with transformers 5 treats a layer's
// experts as fused 3-D tensors instead; where this changes stored bytes, the groups below are marked "compat".
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
    conv,           // nn.Conv1d/2d/3d: has quantizers in Model Optimizer, but stays unquantized
    matrix,         // a 2-D weight that is not known to be a linear's: stays unquantized
    router,         // gate of a mixture of experts: never quantized, listed as excluded
    fused_experts,  // all experts' matrices in one 3-D tensor that could not be split
    carried,        // norms, biases, state-space parameters, copied layers ...: no quantizers
};

struct Module {
    std::string name;  // "model.layers.0.mlp.up_proj"
    ModuleKind kind = ModuleKind::carried;
    std::string_view parent_class;  // "nn.Linear"; empty: not a class of nn
    std::string why;                // carried: the reason; fused_experts: why the stack could not be split, if known
    bool listed = false;            // named in exclude_modules although it is not quantized
    bool routed_expert = false;     // the name contains ".experts.E."
    bool in_joint_mlp = false;      // gate and up are one matrix in transformers, so Model Optimizer joins their maxima
    std::string parallel_layer;     // "model.layers.0" where attention and MLP read the rows of one norm; else empty

    bool has_quantizers() const { return kind != ModuleKind::carried; }
};

struct ModelModules {
    std::vector<Module> modules;          // one per tensor, in the order of the tensors
    std::vector<std::string> attention;   // modules with a KV cache: "model.layers.0.self_attn", in order of layers
    std::vector<std::string> tied_heads;  // "lm_head" if it has no tensor of its own; listed as excluded
};

// Classifies the tensors. `config`: config.json; may be null, and then tied heads and copied layers are not recognized.
ModelModules find_modules(std::span<const CheckpointTensor> tensors, const Json& config);

// Keys of the groups that a linear belongs to; empty: none. Members of a group have equal keys.
struct ModuleGroups {
    // Linears that an engine runs as one matrix, so they need one format and one scale of each kind: q/k/v, gate/up,
    // w1/w3, q_a/kv_a of latent attention, in_proj_qkv/z and in_proj_b/a of gated delta nets.
    std::string fused;
    std::string search;  // q/k/v, gate/up, w1/w3: a search assigns them one format and one maximum
    // Fused groups with the same inputs: Model Optimizer gives them one tensor scale.
    std::string scale;
    std::string input;  // linears that share input_scale: those of `scale`, and all routed experts of a layer (compat)
};
ModuleGroups groups_of(const Module& module);

// Returns the fused groups with at least two members as indices into `modules`, in the order of their first members.
std::vector<std::vector<size_t>> fused_groups(std::span<const Module> modules);

// A row of the table that groups_of() uses.
struct FusedGroup {
    std::vector<std::string_view> members;  // names below the module that has them all: "q_proj", "indexer.wk"
    std::string_view engine_name;           // name of the fused module in engines; empty: they keep the members' names
    std::string_view fused, scale;  // as in ModuleGroups, without the parent's name; fused is empty for a linear that
                                    // stands alone
    bool searched = false;
};
std::span<const FusedGroup> fused_group_table();

// Returns true if the name belongs to a vision or audio tower, or to a projector between a tower and the text model.
bool is_outside_text_model(std::string_view name);

// Returns one name for the same module of all layers and experts: "model.layers.*.conv.conv" for
// "model.layers.3.conv.conv".
std::string module_kind_name(std::string_view name);

// Returns the index of a linear in its fused group, in the order in which a model runs them: 0 for q, gate, w1,
// in_proj_qkv.
int order_in_group(const Module& module);

}  // namespace nibble
