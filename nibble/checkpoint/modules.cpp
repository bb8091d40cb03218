#include "checkpoint/modules.h"

#include "checkpoint/text_config.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <unordered_set>

namespace nibble {
namespace {

constexpr std::string_view dot_weight = ".weight";
using WordList = std::initializer_list<std::string_view>;

bool one_of(std::string_view text, WordList names) {
    return std::find(names.begin(), names.end(), text) != names.end();
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// "a.b.c" -> {"a.b", "c"}
std::pair<std::string_view, std::string_view> split_leaf(std::string_view name) {
    const size_t dot = name.rfind('.');
    if (dot == std::string_view::npos) return {{}, name};
    return {name.substr(0, dot), name.substr(dot + 1)};
}

bool is_linear_leaf(std::string_view leaf) {
    constexpr std::string_view endings[] = {"_proj",  "proj",      "_linear",     "linear", "_fc",
                                            "_head",  "_h_to_4h",  "_4h_to_h",    "_layer", "dense",
                                            "_dense", "_with_mqa", "_projection", "_down",  "_up"};
    for (std::string_view e : endings)
        if (leaf.ends_with(e)) return true;
    // in_proj_qkvz, linear_1, fc1, w1, proj1, layers of heads ...
    constexpr std::string_view starts[] = {"in_proj_", "linear_", "fc", "proj_", "to_", "mlp_"};
    for (std::string_view s : starts)
        if (leaf.starts_with(s)) return true;
    return one_of(leaf, {"w1",
                         "w2",
                         "w3",
                         "wq",
                         "wk",
                         "wv",
                         "wo",
                         "wqkv",
                         "Wqkv",
                         "Wo",
                         "Wi",
                         "qkv",
                         "kv",
                         "query",
                         "key",
                         "value",
                         "query_key_value",
                         "q",
                         "k",
                         "v",
                         "o",
                         "wi",
                         "wi_0",
                         "wi_1",
                         "lm_head",
                         "embed_out",
                         "output",
                         "score",
                         "classifier",
                         "out",
                         "wq_a",
                         "wq_b",
                         "wkv",
                         "wkv_a",
                         "wkv_b",
                         "wo_b",
                         "gate",
                         "up",
                         "down",
                         "per_layer_input_gate",
                         "output_gate",
                         "wgate"});
}

bool is_embedding_leaf(std::string_view leaf) {
    return contains(leaf, "embed") || one_of(leaf, {"wte", "wpe", "tok_embeddings", "shared"});
}

std::string_view text_field(const Json& config, const char* key) {
    if (!config.is_object()) return {};
    const auto found = config.find(key);
    return found != config.end() && found->is_string() ? std::string_view(found->get_ref<const std::string&>()) : "";
}

class Classifier {
public:
    Classifier(std::span<const CheckpointTensor> tensors, const Json& config)
        : transposed_(one_of(text_field(config, "model_type"), {"gpt2", "openai-gpt", "imagegpt"})),
          own_embedding_(text_field(config, "model_type").starts_with("gemma")),
          joint_mlps_(text_field(config, "model_type").starts_with("minimax_m3")),
          prediction_(config) {
        for (const CheckpointTensor& t : tensors)
            if (const size_t at = t.name.find(".experts."); at != std::string::npos)
                with_experts_.insert(t.name.substr(0, at));
    }

    Module classify(const CheckpointTensor& tensor) const {
        Module m;
        m.name = tensor.name.ends_with(dot_weight) ? tensor.name.substr(0, tensor.name.size() - dot_weight.size())
                                                   : tensor.name;
        const auto [parent, leaf] = split_leaf(m.name);
        m.routed_expert = contains(m.name, ".experts.");
        m.in_joint_mlp = m.routed_expert || (joint_mlps_ && one_of(leaf, {"gate_proj", "up_proj"}));
        if (prediction_.contains(tensor.name)) {
            m.why = "multi-token prediction layer: copied";
            m.listed = tensor.shape.size() == 2 && is_linear_leaf(leaf);
        } else if (!is_plain_float(tensor.dtype)) {
            m.why = fmt::format("{}: not a weight", dtype_name(tensor.dtype));
        } else if (tensor.experts) {  // a parameter of a module of its own class
            m.kind = ModuleKind::linear;
            m.listed = true;
            m.routed_expert = m.in_joint_mlp = false;
        } else if (tensor.shape.size() == 3 && is_stack(tensor)) {
            m.kind = ModuleKind::fused_experts;
            m.why = tensor.whole;
            m.listed = true;
        } else if (!tensor.name.ends_with(dot_weight)) {
            m.why = leaf == "bias" || leaf.ends_with("_bias") ? "bias" : "parameter: its name does not end in .weight";
        } else if (one_of(leaf, {"gate", "router", "wg", "shared_expert_gate"}) &&
                   with_experts_.contains(std::string(parent))) {
            classify_router(m, leaf);
        } else if (const auto [module, name] = split_leaf(parent);
                   leaf == "layer" && name == "router" && with_experts_.contains(std::string(module))) {
            m.name = parent;  // Granite: the router is a module, its linear a part of it
            classify_router(m, name);
        } else if (tensor.shape.size() > 2) {
            constexpr std::array classes = {"nn.Conv1d", "nn.Conv2d", "nn.Conv3d"};
            m.kind = ModuleKind::conv;
            m.parent_class = tensor.shape.size() <= 5 ? classes[tensor.shape.size() - 3] : "";
        } else if (tensor.shape.size() < 2) {
            m.why = contains(leaf, "norm") || leaf.starts_with("ln") ? "norm" : "vector";
        } else {
            classify_matrix(m, leaf);
        }
        return m;
    }

private:
    // Returns true if a 3-D tensor holds one matrix per expert: "moe.up_proj.weight" [experts, out, in],
    // "experts_w1.weight". Kernels of convolutions have "conv" in their name, one channel per group ([channels, 1,
    // taps]), or few taps.
    static bool is_stack(const CheckpointTensor& t) {
        constexpr int64_t most_taps = 31;
        if (contains(t.name, "conv")) return false;
        if (contains(t.name, "expert")) return true;
        return t.name.ends_with(dot_weight) && t.shape[1] > 1 && (contains(t.name, "moe.") || t.shape[2] > most_taps);
    }

    // In transformers, shared_expert_gate is an ordinary linear, but the router is a class without quantizers.
    void classify_router(Module& m, std::string_view leaf) const {
        m.listed = true;
        m.kind = leaf == "shared_expert_gate" ? ModuleKind::linear : ModuleKind::router;
        if (m.kind == ModuleKind::linear) m.parent_class = "nn.Linear";
    }

    void classify_matrix(Module& m, std::string_view leaf) const {
        if (is_embedding_leaf(leaf) && leaf != "embed_out") {
            m.kind = ModuleKind::embedding;
            m.parent_class = "nn.Embedding";
            m.listed = !own_embedding_;
        } else if (contains(m.name, "patch_merge_mlp")) {  // a part of MiniMax M3's multi_modal_projector
            m.why = "projector of a vision tower: copied";
            m.listed = true;
        } else if (leaf == "wo_a") {
            m.why = "grouped product: not a linear layer";  // DeepSeek V4
        } else if (transposed_ && leaf.starts_with("c_")) {
            m.why = "stored as [in, out]: this architecture is not supported";
        } else if (is_linear_leaf(leaf)) {
            m.kind = ModuleKind::linear;
            m.parent_class = "nn.Linear";
            m.listed = true;
        } else {
            m.kind = ModuleKind::matrix;
            m.why = "not known as the weight of a linear";
            m.listed = true;
        }
    }

    bool transposed_;
    bool own_embedding_;  // the embedding is a class of its own, to which Model Optimizer adds no quantizers and which
                          // it never lists
    bool joint_mlps_;     // see Module::in_joint_mlp
    PredictionLayers prediction_;
    std::unordered_set<std::string> with_experts_;
};

bool is_vision(std::string_view name) {
    return contains(name, "vision") || contains(name, "visual") || contains(name, "audio") ||
           contains(name, "encoder.");
}

// Marks the layers with one norm, input_layernorm, before attention and MLP (cohere2, some of stablelm).
void mark_parallel_layers(std::vector<Module>& modules) {
    std::unordered_set<std::string> one_norm;
    for (const Module& m : modules)
        if (const auto [layer, leaf] = split_leaf(m.name); leaf == "input_layernorm") one_norm.emplace(layer);
    for (const Module& m : modules)
        if (const auto [layer, leaf] = split_leaf(m.name); leaf != "input_layernorm" && contains(leaf, "norm"))
            one_norm.erase(std::string(layer));
    for (Module& m : modules) {
        const std::string_view parent = split_leaf(m.name).first, layer = split_leaf(parent).first;
        if (m.kind == ModuleKind::linear && one_norm.contains(std::string(layer))) m.parallel_layer = layer;
    }
}

// Returns the modules whose children project keys and values. Linear attention, with other names or convolutions, and
// indexers have no cache of keys and values.
std::vector<std::string> find_attention(const std::vector<Module>& modules) {
    std::vector<std::string> found;
    std::unordered_set<std::string> seen;
    for (const Module& m : modules)
        if (const auto [parent, leaf] = split_leaf(m.name); m.kind == ModuleKind::conv && contains(leaf, "conv1d"))
            seen.emplace(parent);
    for (const Module& m : modules) {
        const auto [parent, leaf] = split_leaf(m.name);
        if (split_leaf(parent).second == "indexer") continue;
        if (m.kind != ModuleKind::linear || is_vision(m.name) || contains(m.name, "linear_attn")) continue;
        if (one_of(leaf, {"k_proj", "kv_a_proj_with_mqa", "qkv_proj", "query_key_value", "Wqkv", "wqkv", "wk"}) &&
            seen.insert(std::string(parent)).second)
            found.emplace_back(parent);
    }
    return found;
}

std::vector<std::string> find_tied_heads(const std::vector<Module>& modules, const Json& config) {
    bool has_head = false;
    std::string_view embedding;
    for (const Module& m : modules) {
        const std::string_view leaf = split_leaf(m.name).second;
        has_head = has_head || one_of(leaf, {"lm_head", "embed_out", "output"});
        if (m.kind == ModuleKind::embedding && embedding.empty() && !is_vision(m.name)) embedding = m.name;
    }
    const Json* tied = text_value(config, "tie_word_embeddings");
    const bool untied = tied && tied->is_boolean() && !tied->get<bool>();
    if (has_head || embedding.empty() || untied || !config.is_object()) return {};
    return {embedding.starts_with("language_model.") ? "language_model.lm_head" : "lm_head"};
}

}  // namespace

ModelModules find_modules(std::span<const CheckpointTensor> tensors, const Json& config) {
    const Classifier classifier(tensors, config);
    ModelModules model;
    model.modules.reserve(tensors.size());
    for (const CheckpointTensor& t : tensors) model.modules.push_back(classifier.classify(t));
    mark_parallel_layers(model.modules);
    model.attention = find_attention(model.modules);
    model.tied_heads = find_tied_heads(model.modules, config);
    return model;
}

std::span<const FusedGroup> fused_group_table() {
    // q_proj and kv_a_proj_with_mqa (latent attention without q_a_proj) have the same inputs but are not fused.
    static const std::array<FusedGroup, 13> table{{
        {{"g_proj", "b_proj", "f_a_proj", "g_a_proj", "index_q_proj", "index_k_proj"}, "", "", "q,kv"},
        {{"q_proj", "k_proj", "v_proj"}, "qkv_proj", "q,k,v", "q,kv", true},
        {{"gate_proj", "up_proj"}, "gate_up_proj", "gate,up", "gate,up", true},
        {{"w1", "w3"}, "", "w1,w3", "w1,w3", true},
        {{"q_a_proj", "kv_a_proj_with_mqa"}, "fused_qkv_a_proj", "q_a,kv_a", "q,kv"},
        {{"in_proj_qkv", "in_proj_z"}, "in_proj_qkvz", "qkv,z", "in_proj"},
        {{"in_proj_b", "in_proj_a"}, "in_proj_ba", "b,a", "in_proj"},
        {{"in_proj_qkvz"}, "", "", "in_proj"},
        {{"in_proj_ba"}, "", "", "in_proj"},
        {{"indexer.wk", "indexer.weights_proj"}, "", "", "q,kv"},
        {{"q_b_proj", "wq_b", "indexer.wq_b"}, "", "", "q_b"},
        {{"wq_a", "wkv", "compressor.wkv", "compressor.wgate", "indexer.compressor.wkv", "indexer.compressor.wgate"},
         "",
         "",
         "q,kv"},
    }};
    return table;
}

namespace {

// Returns whether a module's name ends with these whole parts: "a.indexer.wk" ends with "indexer.wk".
bool ends_with_module(std::string_view name, std::string_view ending) {
    if (!name.ends_with(ending)) return false;
    return name.size() == ending.size() || name[name.size() - ending.size() - 1] == '.';
}

}  // namespace

ModuleGroups groups_of(const Module& module) {
    ModuleGroups groups;
    if (module.kind != ModuleKind::linear) return groups;
    std::string_view member;  // the longest one that ends the module's name
    const FusedGroup* row = nullptr;
    for (const FusedGroup& group : fused_group_table())
        for (const std::string_view m : group.members)
            if (m.size() > member.size() && ends_with_module(module.name, m)) member = m, row = &group;
    const std::string_view name = module.name, leaf = split_leaf(name).second;
    const std::string_view parent = name.substr(0, name.size() - std::min(name.size(), member.size() + 1));
    const auto key = [parent](std::string_view what) { return fmt::format("{}.{{{}}}", parent, what); };
    if (row) {
        if (!row->fused.empty()) groups.fused = key(row->fused);
        groups.scale = key(row->scale);
        if (row->searched) groups.search = groups.fused;
        if (!module.parallel_layer.empty()) groups.scale = fmt::format("{}.{{parallel}}", module.parallel_layer);
    }
    groups.input = groups.scale;
    if (module.routed_expert) {
        const size_t at = module.name.find(".experts.") + 8;
        const std::string_view experts = std::string_view(module.name).substr(0, at);
        const bool gated = !groups.fused.empty();
        groups.input = fmt::format("{}.*.{{{}}}", experts, gated ? leaf.starts_with('w') ? "w1,w3" : "gate,up" : leaf);
    }
    return groups;
}

std::vector<std::vector<size_t>> fused_groups(std::span<const Module> modules) {
    std::unordered_map<std::string, size_t> index;
    std::vector<std::vector<size_t>> groups;
    for (size_t i = 0; i < modules.size(); ++i) {
        std::string key = groups_of(modules[i]).fused;
        if (key.empty()) continue;
        const auto [at, fresh] = index.try_emplace(std::move(key), groups.size());
        if (fresh) groups.emplace_back();
        groups[at->second].push_back(i);
    }
    std::erase_if(groups, [](const auto& members) { return members.size() < 2; });
    return groups;
}

bool is_outside_text_model(std::string_view name) {
    return is_vision(name) || contains(name, "multi_modal_projector") || contains(name, "mm_projector") ||
           contains(name, "patch_merge_mlp") || contains(name, "vit_large_projector");
}

std::string module_kind_name(std::string_view name) {
    std::string kind;
    while (!name.empty()) {
        const size_t dot = std::min(name.find('.'), name.size());
        const std::string_view part = name.substr(0, dot);
        kind += kind.empty() ? "" : ".";
        kind += part.find_first_not_of("0123456789") == part.npos ? "*" : part;
        name.remove_prefix(std::min(dot + 1, name.size()));
    }
    return kind;
}

int order_in_group(const Module& module) {
    const std::string_view leaf = split_leaf(module.name).second;
    if (one_of(leaf, {"q_proj", "q_a_proj", "gate_proj", "w1", "in_proj_qkv", "in_proj_qkvz"})) return 0;
    if (one_of(leaf, {"v_proj", "in_proj_b"})) return 2;
    return leaf == "in_proj_a" ? 3 : 1;
}

}  // namespace nibble
