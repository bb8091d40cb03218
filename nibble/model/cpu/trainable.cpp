#include "model/cpu/trainable.h"

#include <fmt/format.h>

namespace nibble {
namespace {

std::string_view lacks(const AttentionConfig& a) {
    if (!a.sinks.empty()) return "attention sinks";
    if (a.soft_cap > 0) return "soft caps of scores";
    if (!a.head_gate.empty()) return "gates of heads";
    if (a.value_norm) return "norms of values";
    if (a.v_proj.empty()) return "values from k_proj";
    if (a.kv_block >= 0 || a.kv_shared) return "keys and values that layers share";
    if (a.qk_norm == QkNorm::late_plain) return "norms of queries and keys without weights";
    return {};
}
std::string_view lacks(const LatentAttentionConfig&) { return {}; }
std::string_view lacks(const MlpConfig& m) { return m.clamp ? "clamped gated units" : ""; }
std::string_view lacks(const CompressedAttentionConfig&) { return "compressed attention"; }
std::string_view lacks(const MoeConfig& m) {
    if (m.router == MoeConfig::Router::sqrt_softplus) return "a router with softplus scores";
    if (m.router == MoeConfig::Router::sparse_mixer) return "a sparse mixer's router";
    if (m.stacked) return "experts in stacks";
    if (m.weigh_inputs) return "experts whose inputs are weighed";
    if (!m.router_scale.empty() || !m.experts_norm.empty() || !m.expert_scale.empty())
        return "a router with a norm and scales";
    const std::string_view expert = lacks(m.expert);
    return expert.empty() ? lacks(m.shared) : expert;
}
std::string_view lacks(const MambaConfig&) { return {}; }
std::string_view lacks(const GatedDeltaConfig&) { return {}; }
std::string_view lacks(const ShortConvConfig&) { return {}; }
std::string_view lacks(const PerLayerInputConfig&) { return "per-layer embeddings"; }
std::string_view lacks(const ParallelConfig& p) {
    for (const Branch& branch : p.branches)
        if (const auto what = std::visit([](const auto& mixer) { return lacks(mixer); }, branch.mixer); !what.empty())
            return what;
    return {};
}

}  // namespace

Status check_backward(const BlockConfig& block) {
    std::string_view what = std::visit([](const auto& mixer) { return lacks(mixer); }, block.mixer);
    if (what.empty() && !block.hyper.empty()) what = "hyper-connections";
    if (what.empty() && !block.output_scale.empty()) what = "scalars of layers";
    if (what.empty()) return Ok{};
    return fail("{}: a backward pass through {} is not supported, so this model cannot be trained", block.prefix, what);
}

Status check_backward(const ModelConfig& model) {
    if (model.logit_cap > 0)
        return fail("a backward pass through soft caps of logits is not supported, so this model cannot be trained");
    for (const BlockConfig& block : model.blocks) NIBBLE_CHECK(check_backward(block));
    return Ok{};
}

}  // namespace nibble
