#include "architecture/stored_names.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>
#include <variant>

namespace nibble {

StoredNames::StoredNames(std::vector<std::string_view> tensors) : names_(std::move(tensors)) {
    std::ranges::sort(names_);
}

bool StoredNames::has(std::string_view tensor) const { return std::ranges::binary_search(names_, tensor); }

bool StoredNames::has_prefix(std::string_view prefix) const {
    const auto at = std::ranges::lower_bound(names_, prefix);
    return at != names_.end() && at->starts_with(prefix);
}

namespace {

using Names = std::span<const std::string_view>;

// Modules, as the last part of a block's prefix.
constexpr std::array<std::string_view, 3> feed_forward_names{"mlp", "block_sparse_moe", "feed_forward"};
constexpr std::array<std::string_view, 3> router_names{"gate", "router", "router.layer"};
constexpr std::array<std::string_view, 2> shared_names{"shared_experts", "shared_expert"};
// Tensors and parts of names, relative to a block.
constexpr std::array<std::string_view, 2> selection_bias_names{"gate.e_score_correction_bias",
                                                               "e_score_correction_bias"};
// The three matrices of a gated MLP.
struct MatrixNames {
    std::string_view gate, up, down;
};
constexpr std::array matrix_names{MatrixNames{"gate_proj", "up_proj", "down_proj"}, MatrixNames{"w1", "w3", "w2"}};
constexpr std::string_view fused_name = "gate_up_proj";

class Respelling {
public:
    explicit Respelling(const StoredNames& stored) : stored_(stored) {}

    void block(BlockConfig& b) const {
        if (auto* parallel = std::get_if<ParallelConfig>(&b.mixer)) {
            for (Branch& branch : parallel->branches) mixer(branch.prefix, branch.mixer);
            return;
        }
        mixer(b.prefix, b.mixer);
    }

    // With the root "language_model.model." the head is "language_model.lm_head" in one spelling, "lm_head" in another.
    // A bias also shows the name, so that a missing weight is reported under it.
    void head(std::string& name) const {
        constexpr std::array<std::string_view, 3> names{"lm_head.weight", "language_model.lm_head.weight",
                                                        "model.lm_head.weight"};
        if (name.ends_with("lm_head.weight"))
            choose(name, names, [&](const std::string& tensor) {
                const std::string module = tensor.substr(0, tensor.size() - std::string_view("weight").size());
                return stored_.has(tensor) || stored_.has(module + "bias");
            });
    }

private:
    // Sets `name` to the first of `names` that satisfies `stored`, unless it does so itself.
    template <class Stored>
    static void choose(std::string& name, Names names, Stored stored) {
        if (stored(name)) return;
        for (const std::string_view other : names)
            if (stored(std::string(other))) {
                name = other;
                return;
            }
    }

    void mixer(std::string& prefix, MixerConfig& config) const {
        if (auto* mlp = std::get_if<MlpConfig>(&config)) {
            feed_forward(prefix);
            matrices(prefix, *mlp);
        } else if (auto* moe = std::get_if<MoeConfig>(&config)) {
            feed_forward(prefix);
            experts(prefix + ".", *moe);
        }
    }

    void feed_forward(std::string& prefix) const {
        const size_t dot = prefix.rfind('.');
        if (dot == prefix.npos || std::ranges::count(feed_forward_names, std::string_view(prefix).substr(dot + 1)) == 0)
            return;
        std::string name = prefix.substr(dot + 1);
        choose(name, feed_forward_names,
               [&](const std::string& last) { return stored_.has_module(prefix.substr(0, dot + 1) + last); });
        prefix.replace(dot + 1, prefix.npos, name);
    }

    void matrices(const std::string& prefix, MlpConfig& m) const {
        const auto has = [&](std::string_view name) { return stored_.has_module(fmt::format("{}.{}", prefix, name)); };
        const auto has_inputs = [&](const MatrixNames& names) { return has(names.up) || (m.gated && has(names.gate)); };
        const MatrixNames own{m.gate_proj, m.up_proj, m.down_proj};
        if (m.gate_up_proj.empty() ? has_inputs(own) : has(m.gate_up_proj)) return;
        const auto names = std::ranges::find_if(matrix_names, has_inputs);
        if (names != matrix_names.end()) {
            m.gate_proj = names->gate, m.up_proj = names->up, m.down_proj = names->down;
            m.gate_up_proj.clear();
        } else if (m.gated && has(fused_name)) {
            m.gate_up_proj = fused_name;
            for (const MatrixNames& other : matrix_names)
                if (!has(m.down_proj) && has(other.down)) m.down_proj = other.down;
        }
    }

    // `base` ends with a dot.
    void experts(const std::string& base, MoeConfig& m) const {
        const auto module = [&](const std::string& name) { return stored_.has_module(base + name); };
        std::string holder;  // "moe." of "moe.gate"
        for (const std::string_view name : router_names)
            if (m.gate.ends_with("." + std::string(name))) holder = m.gate.substr(0, m.gate.size() - name.size());
        std::string router = m.gate.substr(holder.size());
        choose(router, router_names,
               [&](const std::string& name) { return stored_.has(base + holder + name + ".weight"); });
        m.gate = holder + router;
        choose(m.selection_bias_name, selection_bias_names,
               [&](const std::string& name) { return stored_.has(base + name); });
        if (!m.stacked) matrices(fmt::format("{}{}.0", base, m.experts_name), m.expert);
        if (m.shared.intermediate == 0) return;
        choose(m.shared_name, shared_names, module);
        matrices(base + m.shared_name, m.shared);
    }

    const StoredNames& stored_;
};

}  // namespace

void use_stored_names(ModelConfig& model, const StoredNames& stored) {
    const Respelling respelling(stored);
    for (BlockConfig& block : model.blocks) respelling.block(block);
    if (model.prediction)
        for (BlockConfig& block : model.prediction->blocks) respelling.block(block);
    respelling.head(model.head);
}

}  // namespace nibble
