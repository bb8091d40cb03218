#include "model/device/mixer.h"

#include "model/device/attention.h"
#include "model/device/gated_delta.h"
#include "model/device/latent_attention.h"
#include "model/device/mamba.h"
#include "model/device/mlp.h"
#include "model/device/moe.h"

namespace nibble {
namespace {

struct Maker {
    const ModelConfig& model;
    const Block& block;
    DeviceWeights& weights;

    // Returns the CPU mixer of the same block.
    template <class T>
    const T& outline() const {
        return static_cast<const T&>(block.mixer());
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const AttentionConfig&) const {
        return DeviceAttention::make(block.config(), model.norm_eps, outline<Attention>(), weights);
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const LatentAttentionConfig&) const {
        return DeviceLatentAttention::make(block.config(), outline<LatentAttention>(), weights);
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const MlpConfig&) const {
        NIBBLE_TRY(auto mlp, DeviceMlp::make(outline<Mlp>(), weights));
        return std::unique_ptr<DeviceMixer>(std::move(mlp));
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const MoeConfig&) const {
        return DeviceMoe::make(outline<Moe>(), block.config().prefix, weights);
    }
    // check_device_block refuses them before.
    Result<std::unique_ptr<DeviceMixer>> operator()(const PerLayerInputConfig&) const {
        return fail("{}: per-layer embeddings have no GPU kernel", block.config().prefix);
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const ParallelConfig&) const {
        return fail("{}: mixers that read the same rows have no GPU kernel", block.config().prefix);
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const MambaConfig&) const {
        return DeviceMamba::make(block.config(), model.norm_eps, outline<Mamba>(), weights);
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const GatedDeltaConfig&) const {
        return DeviceGatedDelta::make(block.config(), model.norm_eps, outline<GatedDelta>(), weights);
    }
};

}  // namespace

Result<std::unique_ptr<DeviceMixer>> make_device_mixer(const ModelConfig& model, const Block& block,
                                                       DeviceWeights& weights) {
    return std::visit(Maker{model, block, weights}, block.config().mixer);
}

namespace {

// Rejects features of a description that have no GPU kernel.
Status check_device_block(const ModelConfig& model, const BlockConfig& block) {
    const auto lacks = [&](std::string_view what) {
        return fail("{}: {} not supported on --device cuda; use --device cpu", block.prefix, what);
    };
    if (block.norm.empty()) return lacks("a block without a norm before its mixer is");
    if (block.residual_scale != 1.0f) return lacks("multipliers of residuals are");
    if (!block.output_scale.empty()) return lacks("scalars of layers are");
    if (model.logit_scale != 1.0f) return lacks("multipliers of logits are");
    if (model.logit_cap > 0) return lacks("soft caps of logits are");
    if (model.head_bias) return lacks("a bias of lm_head is");
    if (model.layer_norm) return lacks("LayerNorm is");
    if (std::holds_alternative<PerLayerInputConfig>(block.mixer)) return lacks("per-layer embeddings are");
    if (std::holds_alternative<ParallelConfig>(block.mixer)) return lacks("mixers that read the same rows are");
    if (const auto* a = std::get_if<AttentionConfig>(&block.mixer)) {
        if (a->query_period > 0) return lacks("a scale of queries by their position is");
        if (a->output_gate) return lacks("gates on the output of attention are");
        if (a->qk_norm == QkNorm::joined) return lacks("norms over all heads of queries and keys are");
        if (a->qk_norm == QkNorm::late_plain) return lacks("norms of queries and keys without weights are");
        if (a->soft_cap > 0) return lacks("soft caps of scores are");
        if (!a->sinks.empty()) return lacks("attention sinks are");
        if (!a->head_gate.empty()) return lacks("gates of heads are");
        if (a->chunk > 0) return lacks("attention in chunks is");
        if (a->v_dim > 0 || a->value_scale != 1.0f || a->value_norm || a->v_proj.empty())
            return lacks("values with their own size, scale or norm, or from k_proj, are");
        if (a->kv_block >= 0 || a->kv_shared) return lacks("keys and values that layers share are");
        if (a->qk_norm == QkNorm::late) return lacks("norms of queries and keys after the rotary embedding are");
    }
    if (const auto* a = std::get_if<LatentAttentionConfig>(&block.mixer); a && a->query_period > 0)
        return lacks("a scale of queries by their position is");
    if (const auto* mlp = std::get_if<MlpConfig>(&block.mixer)) {
        if (!mlp->gate_up_proj.empty()) return lacks("gate_proj and up_proj in one matrix are");
        if (mlp->clamp) return lacks("clamped gated units are");
    }
    if (const auto* moe = std::get_if<MoeConfig>(&block.mixer)) {
        if (moe->expert.clamp || moe->shared.clamp) return lacks("clamped gated units are");
        if (moe->shared_gate) return lacks("gates on the output of shared experts are");
        if (moe->stacked) return lacks("experts in stacks are");
        if (moe->expert.bias || moe->gate_bias) return lacks("biases of experts and routers are");
        if (moe->router == MoeConfig::Router::sparse_mixer) return lacks("a sparse mixer's router is");
        if (moe->weigh_inputs) return lacks("experts whose inputs are weighed are");
        if (!moe->router_scale.empty() || !moe->experts_norm.empty() || !moe->expert_scale.empty())
            return lacks("a router with a norm and scales is");
    }
    return Ok{};
}

}  // namespace

Result<DeviceLayer> DeviceLayer::make(const ModelConfig& model, const Block& block, DeviceWeights& weights) {
    NIBBLE_CHECK(check_device_block(model, block.config()));
    DeviceLayer layer{.config = block.config()};
    NIBBLE_TRY(layer.norm, weights.vector(block.norm()));
    NIBBLE_TRY(layer.post_norm, weights.vector(block.post_norm()));
    NIBBLE_TRY(auto mixer, make_device_mixer(model, block, weights));
    layer.mixer = std::move(mixer);
    return layer;
}

}  // namespace nibble
