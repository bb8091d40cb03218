// The training versions of the mixers of model/device/mixer.h: the same forward pass, part by part, so that
// intermediates can be kept, and the backward pass. Each mixer has a file: train_attention.cpp, train_latent.cpp,
// train_mamba.cpp, train_mlp.cpp, train_moe.cpp.
#pragma once

#include "base/checked.h"
#include "train/device/train_linear.h"
#include "train/memory_plan.h"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace nibble {

struct DeviceLayer;

// Sizes of a pass, constant over steps.
struct TrainPassShape {
    int64_t rows = 0, seq = 0;  // maximum of a micro-batch
    Recompute recompute = Recompute::none;
    int64_t taught = 0;  // bytes of a slab of the teacher's logits and of their product

    int64_t tokens() const { return rows * seq; }
};

// Returns the bytes that an arena allocates for `bytes`.
inline int64_t whole(int64_t bytes) { return round_up(bytes, DeviceArena::alignment); }

struct TrainMixerSizes {
    std::vector<int64_t> kept;  // bytes of each buffer that is kept for the backward pass
    // bytes of scratch memory, with each buffer rounded up by whole(); without attention's workspace
    int64_t forward = 0;
    int64_t backward = 0;
    int64_t workspace = 0;  // bytes for two-stage sums
};

class TrainMixer {
public:
    virtual ~TrainMixer() = default;

    // Error: no kernels for the shape of this mixer.
    virtual Result<TrainMixerSizes> sizes(int64_t tokens) const = 0;
    // x [rows, hidden] BF16 -> `kept` (buffers that only the backward pass reads are written with `keep`) and y [rows,
    // hidden] BF16 (may be null).
    virtual Status forward(const std::byte* x, std::span<std::byte* const> kept, bool keep, std::byte* y,
                           TrainWork& work) const = 0;
    // Returns true if forward() of this many rows is faster with the largest magnitude of x (TrainWork::amax).
    virtual bool reads_amax(int64_t) const { return false; }
    // Computes dx from dy [rows, hidden] BF16 and writes all gradients of parameters: matrices to `gradient` (flat),
    // vectors to work.of_vectors.
    virtual Status backward(const std::byte* x, std::span<std::byte* const> kept, const std::byte* dy, std::byte* dx,
                            float* gradient, TrainWork& work) const = 0;
    // Makes the engine's operands from the published values.
    virtual Status publish(const std::byte* published, const Stream& stream) const = 0;
};

// Creates the mixer of a block whose matrices are `units` (FlatLayout::units). The engine's mixer then reads its
// vectors from `vectors`.
Result<std::unique_ptr<TrainMixer>> make_train_mixer(const ModelConfig& model, DeviceLayer& layer,
                                                     std::span<const FlatMatrix> units, const TrainVectors& vectors,
                                                     bool cached);

// The arguments of the makers. Each mixer's file has one maker.
struct TrainMixerParts {
    const ModelConfig& model;
    DeviceLayer& layer;
    std::span<const FlatMatrix> units;
    const TrainVectors& vectors;
    bool cached = false;  // K and V may be rounded to a cache's format
};
Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts, const AttentionConfig& config);
Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts, const LatentAttentionConfig& config);
Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts, const MambaConfig& config);
Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts, const GatedDeltaConfig& config);
Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts, const MlpConfig& config);
Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts, const MoeConfig& config);
// Errors: these have no kernels.
Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts, const ShortConvConfig& config);
Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts, const PerLayerInputConfig& config);
Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts, const ParallelConfig& config);
Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts,
                                                     const CompressedAttentionConfig& config);

}  // namespace nibble
