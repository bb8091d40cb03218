#include "model/block.h"

namespace nibble {

Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig&, const BlockConfig& block, const LatentAttentionConfig&,
                                          WeightSource&) {
    return fail("{}: latent attention is not supported", block.prefix);
}

Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig&, const BlockConfig& block, const MoeConfig&,
                                          WeightSource&) {
    return fail("{}: experts are not supported", block.prefix);
}

Result<std::unique_ptr<Mixer>> load_mixer(const ModelConfig&, const BlockConfig& block, const MambaConfig&,
                                          WeightSource&) {
    return fail("{}: Mamba-2 is not supported", block.prefix);
}

}  // namespace nibble
