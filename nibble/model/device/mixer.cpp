#include "model/device/mixer.h"

#include "model/device/attention.h"
#include "model/device/gated_delta.h"
#include "model/device/latent_attention.h"
#include "model/device/mamba.h"
#include "model/device/mlp.h"
#include "model/device/moe.h"
#include "model/device/parallel.h"
#include "model/device/per_layer_input.h"
#include "model/device/short_conv.h"

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
        return DeviceAttention::make(block, model.norm_eps, of_cpu<Attention>(), weights);
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const LatentAttentionConfig& a) const {
        if (a.indexer) return lacks("indexers of sparse attention are");
        return DeviceLatentAttention::make(block, of_cpu<LatentAttention>(), weights);
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const CompressedAttentionConfig&) const {
        return lacks("compressed attention and hyper-connections are");
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const MlpConfig&) const {
        NIBBLE_TRY(auto mlp, DeviceMlp::make(of_cpu<Mlp>(), weights));
        return std::unique_ptr<DeviceMixer>(std::move(mlp));
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const MoeConfig&) const {
        return DeviceMoe::make(of_cpu<Moe>(), block.prefix, weights);
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const ShortConvConfig&) const {
        return DeviceShortConv::make(block, of_cpu<ShortConv>(), weights);
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const PerLayerInputConfig&) const {
        return DevicePerLayerInput::make(model, of_cpu<PerLayerInput>(), weights);
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const ParallelConfig&) const {
        return DeviceParallel::make(model, block, of_cpu<Parallel>(), weights);
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const MambaConfig&) const {
        return DeviceMamba::make(block, model.norm_eps, of_cpu<Mamba>(), weights);
    }
    Result<std::unique_ptr<DeviceMixer>> operator()(const GatedDeltaConfig&) const {
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
