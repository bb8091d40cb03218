#include "model/device_mixer.h"

#include "model/device_attention.h"
#include "model/device_latent_attention.h"
#include "model/device_mamba.h"
#include "model/device_mlp.h"
#include "model/device_moe.h"

namespace nibble {
namespace {

struct Maker {
    const ModelConfig& model;
    const Block& block;
    DeviceWeights& weights;

    // The CPU mixer of the same block.
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
    Result<std::unique_ptr<DeviceMixer>> operator()(const MambaConfig&) const {
        return DeviceMamba::make(block.config(), model.norm_eps, outline<Mamba>(), weights);
    }
};

}  // namespace

Result<std::unique_ptr<DeviceMixer>> make_device_mixer(const ModelConfig& model, const Block& block,
                                                       DeviceWeights& weights) {
    return std::visit(Maker{model, block, weights}, block.config().mixer);
}

}  // namespace nibble
