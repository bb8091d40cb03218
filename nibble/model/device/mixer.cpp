#include "model/device/mixer.h"

#include "model/device/attention.h"
#include "model/device/gated_delta.h"
#include "model/device/latent_attention.h"
#include "model/device/mamba.h"
#include "model/device/mlp.h"
#include "model/device/moe.h"
#include "model/device/parallel.h"
#include "model/device/per_layer_input.h"

namespace nibble {
namespace {

struct Maker {
    const ModelConfig& model;
    const BlockConfig& block;
    const Mixer& outline;
    DeviceWeights& weights;

    // Returns the CPU mixer of the same block.
    template <class T>
    const T& of_cpu() const {
        return static_cast<const T&>(outline);
    }
    Error lacks(std::string_view what) const {
        return fail("{}: {} not supported on --device cuda; use --device cpu", block.prefix, what);
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const AttentionConfig& a) const {
        if (a.indexer) return lacks("indexers of sparse attention are");
        if (a.key_scale != 1.0f) return lacks("multipliers of keys are");
        return DeviceAttention::make(block, model.norm_eps, of_cpu<Attention>(), weights);
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const LatentAttentionConfig& a) const {
        if (a.indexer) return lacks("indexers of sparse attention are");
        if (!a.rotates) return lacks("latent attention without a rotary embedding is");
        return DeviceLatentAttention::make(block, of_cpu<LatentAttention>(), weights);
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const MlpConfig& m) const {
        if (m.gate_scale != 1.0f) return lacks("multipliers of gates are");
        NIBBLE_TRY(auto mlp, DeviceMlp::make(of_cpu<Mlp>(), weights));
        return std::unique_ptr<DeviceMixer>(std::move(mlp));
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const MoeConfig& moe) const {
        if (moe.stacked) return lacks("experts in stacks are");
        if (moe.smallest_sum != MoeConfig{}.smallest_sum) return lacks("a sum of weights of this kind is");
        return DeviceMoe::make(of_cpu<Moe>(), block.prefix, weights);
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const ShortConvConfig&) const {
        return lacks("short convolutions are");
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const PerLayerInputConfig&) const {
        return DevicePerLayerInput::make(model, of_cpu<PerLayerInput>(), weights);
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const ParallelConfig& p) const {
        for (const Branch& branch : p.branches)
            if (branch.in_scale != 1.0f || branch.out_scale != 1.0f) return lacks("multipliers of branches are");
        return DeviceParallel::make(model, block, of_cpu<Parallel>(), weights);
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const MambaConfig& m) const {
        if (m.norm != MambaConfig::Norm::after_gate || m.scales != MambaConfig{}.scales)
            return lacks("Mamba-2 with multipliers or without a norm after its gate is");
        return DeviceMamba::make(block, model.norm_eps, of_cpu<Mamba>(), weights);
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const GatedDeltaConfig& g) const {
        if (g.by_channel) return lacks("Kimi delta attention is");
        return DeviceGatedDelta::make(block, model.norm_eps, of_cpu<GatedDelta>(), weights);
    }
};

}  // namespace

Result<std::unique_ptr<DeviceMixer>> make_device_mixer(const ModelConfig& model, const BlockConfig& block,
                                                       const Mixer& outline, DeviceWeights& weights) {
    return std::visit(Maker{model, block, outline, weights}, block.mixer);
}

Result<DeviceLayer> DeviceLayer::make(const ModelConfig& model, const Block& block, DeviceWeights& weights) {
    DeviceLayer layer{.config = block.config(), .output_scale = block.output_scale(), .centered = model.layer_norm};
    NIBBLE_TRY(layer.norm, weights.vector(block.norm()));
    NIBBLE_TRY(layer.norm_bias, weights.vector(block.norm_bias()));
    NIBBLE_TRY(layer.post_norm, weights.vector(block.post_norm()));
    NIBBLE_TRY(layer.post_bias, weights.vector(block.post_bias()));
    NIBBLE_TRY(auto mixer, make_device_mixer(model, block.config(), block.mixer(), weights));
    layer.mixer = std::move(mixer);
    return layer;
}

}  // namespace nibble
