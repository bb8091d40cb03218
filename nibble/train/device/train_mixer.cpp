#include "train/device/train_mixer.h"

#include "model/device/mixer.h"

namespace nibble {

Result<std::unique_ptr<TrainMixer>> make_train_mixer(const ModelConfig& model, DeviceLayer& layer,
                                                     std::span<const FlatMatrix> units, const TrainVectors& vectors,
                                                     bool cached) {
    const TrainMixerParts parts{model, layer, units, vectors, cached};
    return std::visit([&](const auto& config) { return make_train_mixer(parts, config); }, layer.config.mixer);
}

Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts, const GatedDeltaConfig&) {
    return fail("{}: gated delta nets have no GPU kernels for training; use --device cpu", parts.layer.config.prefix);
}

Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts, const ShortConvConfig&) {
    return fail("{}: short convolutions cannot be trained on --device cuda", parts.layer.config.prefix);
}

Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts, const PerLayerInputConfig&) {
    return fail("{}: per-layer embeddings cannot be trained on --device cuda", parts.layer.config.prefix);
}

Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts, const ParallelConfig&) {
    return fail("{}: mixers that read the same rows cannot be trained on --device cuda", parts.layer.config.prefix);
}

Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts, const CompressedAttentionConfig&) {
    return fail("{}: compressed attention cannot be trained on --device cuda", parts.layer.config.prefix);
}

}  // namespace nibble
