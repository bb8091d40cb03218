#include "quant/awq_groups.h"

#include "architecture/tensor_list.h"

#include <algorithm>
#include <map>
#include <unordered_map>

namespace nibble {
namespace {

class Finder {
public:
    Finder(const Plan& plan, const ModelConfig& config, std::span<const CheckpointTensor> tensors)
        : plan_(plan), config_(config), tensors_(tensors) {
        for (size_t i = 0; i < plan.entries.size(); ++i) index_.emplace(plan.entries[i].tensor, i);
    }

    Result<AwqPlan> run() {
        for (; block_ < config_.blocks.size(); ++block_) {
            const BlockConfig& b = config_.blocks[block_];
            if (config_.layer_norm)
                refuse_block(b, "the norm before them is a LayerNorm");
            else
                std::visit([&](const auto& mixer) { find(b, mixer); }, b.mixer);
        }
        bool any = false;
        for (size_t i = 0; i < plan_.entries.size(); ++i) {
            if (!searched(i)) continue;
            any = true;
            if (!covered_.contains(i) && !refused_.contains(i))
                refuse(i, "no norm or linear before it can absorb the inverse scale");
        }
        if (!any)
            return fail("awq_lite scales inputs of linears in nvfp4 and int4; the recipe quantizes no linear to them");
        for (const auto& [why, list] : reasons_)
            out_.unscaled.push_back(fmt::format("awq_lite: {} linears stay unscaled (first: {}): {}", list.size(),
                                                plan_.entries[list.front()].module, why));
        return std::move(out_);
    }

private:
    using Names = std::vector<std::string>;  // names of modules

    bool searched(size_t i) const {
        const Format format = plan_.entries[i].spec.format;
        return format == Format::nvfp4 || format == Format::int4;
    }
    std::optional<size_t> entry(const std::string& tensor) const {
        const auto found = index_.find(tensor);
        return found == index_.end() ? std::nullopt : std::optional(found->second);
    }
    void refuse(size_t i, const std::string& why) {
        if (refused_.insert({i, true}).second) reasons_[why].push_back(i);
    }
    void refuse(const Names& modules, const std::string& why) {
        for (const std::string& m : modules)
            if (const auto i = entry(m + ".weight"); i && searched(*i)) refuse(*i, why);
    }

    void refuse_block(const BlockConfig& b, const std::string& why) {
        Names modules;
        ModelConfig one;
        one.blocks = {b};
        for (const TensorEntry& t : tensor_list(one))
            if (t.role == TensorRole::linear && t.name.ends_with(".weight"))
                modules.push_back(t.name.substr(0, t.name.size() - 7));
        refuse(modules, why);
    }
    void find(const BlockConfig& b, const PerLayerInputConfig&) { refuse_block(b, "per-layer embeddings"); }
    void find(const BlockConfig& b, const ParallelConfig&) { refuse_block(b, "several mixers read the same rows"); }

    // Adds a group. `producer`: name of a tensor.
    void add(const Names& readers, const std::string& producer, bool norm, Names watched,
             std::vector<int32_t> classes = {}) {
        AwqGroup g{.block = block_, .norm = norm, .classes = std::move(classes), .watched = std::move(watched)};
        for (const std::string& m : readers) {
            const auto i = entry(m + ".weight");
            if (!i) return;  // the engine reports the missing tensor
            g.readers.push_back(*i);
            if (searched(*i)) g.members.push_back(*i);
            g.powers_of_two |= plan_.entries[*i].spec.format == Format::none;
        }
        if (g.members.empty()) return;
        const auto made_by = entry(producer);
        if (!made_by) return refuse(readers, "no tensor can absorb the inverse scale");
        g.producer = *made_by;
        if (!norm) {
            g.powers_of_two |= plan_.entries[g.producer].spec.format == Format::none;
            const std::string& module = plan_.entries[g.producer].module;
            g.bias = entry(module + ".bias");
        }
        std::vector<size_t> touched = g.readers;
        touched.push_back(g.producer);
        for (const size_t i : touched) {
            const CheckpointTensor& t = tensors_[i];
            if (t.quantized() || (t.dtype != DType::bf16 && t.dtype != DType::f16 && t.dtype != DType::f32))
                return refuse(readers, fmt::format("tensors in {} cannot be scaled", t.stored_type));
        }
        if (norm && config_.norm_plus_one && g.powers_of_two)
            return refuse(readers,
                          "the norm multiplies by 1 + w, and a reader that stays unquantized needs exact scales");
        for (const size_t i : g.members) covered_[i] = true;
        out_.groups.push_back(std::move(g));
    }

    void find(const BlockConfig& b, const AttentionConfig& c) {
        if (!c.head_gate.empty() || c.value_norm || c.v_proj.empty() || c.kv_block >= 0 || c.v_dim > 0)
            return refuse_block(b, "attention with gates, norms of values, shared keys or another size of values");
        if (c.indexer) return refuse_block(b, "attention with an indexer by block");
        Names qkv = {b.name(c.q_proj), b.name(c.k_proj), b.name(c.v_proj)};
        const bool one = !c.qkv_proj.empty();
        if (one) qkv = {b.name(c.qkv_proj)};
        add(qkv, b.norm, true, {qkv[0]});
        if (one) return refuse({b.name(c.o_proj)}, "one matrix computes values, queries and keys");
        const int group = c.heads / c.kv_heads;
        std::vector<int32_t> classes;
        for (int h = 0; h < c.heads; ++h)
            for (int d = 0; d < c.head_dim; ++d) classes.push_back(h / group * c.head_dim + d);
        add({b.name(c.o_proj)}, b.name(c.v_proj) + ".weight", false, {b.name(c.o_proj)}, std::move(classes));
    }

    void find(const BlockConfig& b, const CompressedAttentionConfig&) { refuse_block(b, "compressed attention"); }
    void find(const BlockConfig& b, const LatentAttentionConfig& c) {
        const std::string q = b.prefix + (c.q_rank > 0 ? ".q_a_proj" : ".q_proj"), q_b = b.prefix + ".q_b_proj";
        Names in{q, b.prefix + ".kv_a_proj_with_mqa"}, of_latent{q_b};
        if (c.indexer && c.indexer->owner < 0) {
            in.insert(in.end(), {b.name("indexer.wk"), b.name("indexer.weights_proj")});
            of_latent.push_back(b.name("indexer.wq_b"));
        }
        add(in, b.norm, true, {q});
        if (c.q_rank > 0) add(of_latent, b.prefix + ".q_a_layernorm.weight", true, {q_b});
        add({b.prefix + ".kv_b_proj"}, b.prefix + ".kv_a_layernorm.weight", true, {b.prefix + ".kv_b_proj"});
        refuse({b.prefix + ".o_proj"}, "kv_b_proj of latent attention computes keys together with values");
    }

    static Names inputs(const std::string& prefix, const MlpConfig& c) {
        if (!c.gate_up_proj.empty()) return {prefix + "." + c.gate_up_proj};
        Names names;
        if (c.gated) names.push_back(prefix + "." + c.gate_proj);
        names.push_back(prefix + "." + c.up_proj);
        return names;
    }
    void down(const std::string& prefix, const MlpConfig& c) {
        const std::string module = prefix + "." + c.down_proj;
        if (c.clamp) return refuse({module}, "its input is clamped");
        if (!c.gated) return refuse({module}, "its input is not a linear function of up_proj's output");
        if (!c.gate_up_proj.empty()) return refuse({module}, "up_proj and gate_proj are one matrix");
        add({module}, prefix + "." + c.up_proj + ".weight", false, {module});
    }

    void find(const BlockConfig& b, const MlpConfig& c) {
        const Names in = inputs(b.prefix, c);
        add(in, b.norm, true, {in[0]});
        down(b.prefix, c);
    }

    void find(const BlockConfig& b, const MoeConfig& c) {
        if (!c.router_scale.empty() || c.weigh_inputs || c.stacked)
            return refuse_block(b, "experts in stacks, or that read other rows than their router");
        Names all = {b.name(c.gate)}, routed, first;
        for (int e = 0; e < c.experts; ++e) {
            const std::string prefix = fmt::format("{}.{}", b.name(c.experts_name), e);
            const Names in = inputs(prefix, c.expert);
            routed.insert(routed.end(), in.begin(), in.end());
            first.push_back(in[0]);
            down(prefix, c.expert);
        }
        if (c.shared.intermediate > 0) {
            const Names in = inputs(b.name(c.shared_name), c.shared);
            all.insert(all.end(), in.begin(), in.end());
            down(b.name(c.shared_name), c.shared);
            if (c.shared_gate) all.push_back(b.name(c.shared_gate_name));
        }
        if (c.latent > 0) {
            all.push_back(b.prefix + ".fc1_latent_proj");
            add(routed, b.prefix + ".fc1_latent_proj.weight", false, first);
        } else {
            all.insert(all.end(), routed.begin(), routed.end());
        }
        add(all, b.norm, true, {b.name(c.gate)});
    }

    void find(const BlockConfig& b, const MambaConfig& c) {
        add({b.prefix + ".in_proj"}, b.norm, true, {b.prefix + ".in_proj"});
        if (c.norm == MambaConfig::Norm::after_gate)
            add({b.prefix + ".out_proj"}, b.prefix + ".norm.weight", true, {b.prefix + ".out_proj"});
        else
            refuse({b.prefix + ".out_proj"}, "its input is not the output of a norm");
    }

    void find(const BlockConfig& b, const ShortConvConfig&) {
        add({b.name("in_proj")}, b.norm, true, {b.name("in_proj")});
        refuse({b.name("out_proj")}, "in_proj of a short convolution computes three factors in one matrix");
    }

    void find(const BlockConfig& b, const GatedDeltaConfig& c) {
        if (c.by_channel) return refuse_block(b, "Kimi delta attention");
        Names in = {b.name("in_proj_qkv"), b.name("in_proj_z"), b.name("in_proj_b"), b.name("in_proj_a")};
        if (c.by_key_head) in = {b.name("in_proj_qkvz"), b.name("in_proj_ba")};
        add(in, b.norm, true, {in[0]});
        refuse({b.name("out_proj")}, "all heads of a gated delta net share the weights of the norm before it");
    }

    const Plan& plan_;
    const ModelConfig& config_;
    std::span<const CheckpointTensor> tensors_;
    std::unordered_map<std::string_view, size_t> index_;  // index of the plan entry, by tensor
    size_t block_ = 0;
    std::map<size_t, bool> covered_, refused_;
    std::map<std::string, std::vector<size_t>> reasons_;
    AwqPlan out_;
};

}  // namespace

Result<AwqPlan> awq_groups(const Plan& plan, const ModelConfig& config, std::span<const CheckpointTensor> tensors) {
    return Finder(plan, config, tensors).run();
}

}  // namespace nibble
