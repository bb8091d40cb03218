#include "train/device/train_mixer.h"

#include "model/device/mixer.h"

namespace nibble {
namespace {

Error not_trained(const TrainMixerParts& parts) {
    return fail("--device cuda does not train mixers other than attention and MLP yet ({})", parts.layer.config.prefix);
}

Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts, const LatentAttentionConfig&) {
    return not_trained(parts);
}
Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts, const MambaConfig&) {
    return not_trained(parts);
}

}  // namespace

Result<std::unique_ptr<TrainMixer>> make_train_mixer(const ModelConfig& model, DeviceLayer& layer,
                                                     std::span<const FlatMatrix> units, const TrainVectors& vectors) {
    const TrainMixerParts parts{model, layer, units, vectors};
    return std::visit([&](const auto& config) { return make_train_mixer(parts, config); }, layer.config.mixer);
}

}  // namespace nibble
