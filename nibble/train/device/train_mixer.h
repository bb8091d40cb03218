// The training twins of the mixers of model/device/mixer.h: the same forward pass, part by part, so that what lies
// between the products can be kept, and the way back. One file for each: train_attention.cpp,
// train_latent.cpp, train_mamba.cpp, train_mlp.cpp, train_moe.cpp.
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

// Sizes of a pass that do not change from step to step.
struct TrainPassShape {
    int64_t rows = 0, seq = 0;  // of a micro-batch, at most
    Recompute recompute = Recompute::none;
    int64_t taught = 0;  // bytes of a teacher's logits of a slab, and of their product

    int64_t tokens() const { return rows * seq; }
};

// Bytes that an arena hands out for `bytes`.
inline int64_t whole(int64_t bytes) { return round_up(bytes, DeviceArena::alignment); }

struct TrainMixerSizes {
    std::vector<int64_t> kept;  // bytes of every buffer from forward to the way back
    int64_t forward = 0;        // of scratch memory, whole() of every buffer; without the workspace of attention
    int64_t backward = 0;
    int64_t workspace = 0;  // of sums in two stages
};

class TrainMixer {
public:
    virtual ~TrainMixer() = default;

    // Error: no kernels for the shape of this mixer.
    virtual Result<TrainMixerSizes> sizes(int64_t tokens) const = 0;
    // x [rows, hidden] BF16 -> `kept` (what only the way back reads: with `keep`) and y [rows, hidden] BF16 (null: not
    // wanted).
    virtual Status forward(const std::byte* x, std::span<std::byte* const> kept, bool keep, std::byte* y,
                           TrainWork& work) const = 0;
    // Whether forward() of so many rows is faster by the largest magnitude of x (TrainWork::amax).
    virtual bool reads_amax(int64_t) const { return false; }
    // dy [rows, hidden] BF16 -> dx, and gradients of parameters into `gradient` (flat; of matrices) and
    // work.of_vectors; all of them are written.
    virtual Status backward(const std::byte* x, std::span<std::byte* const> kept, const std::byte* dy, std::byte* dx,
                            float* gradient, TrainWork& work) const = 0;
    // The engine's operands from the published values.
    virtual Status publish(const std::byte* published, const Stream& stream) const = 0;
};

// Of a block whose matrices lie at `units` (FlatLayout::units). The engine's mixer then reads its vectors where
// `vectors` says.
Result<std::unique_ptr<TrainMixer>> make_train_mixer(const ModelConfig& model, DeviceLayer& layer,
                                                     std::span<const FlatMatrix> units, const TrainVectors& vectors,
                                                     bool cached);

// What a maker is given, and the makers: one in the file of each mixer.
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
Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts, const MlpConfig& config);
Result<std::unique_ptr<TrainMixer>> make_train_mixer(const TrainMixerParts& parts, const MoeConfig& config);

}  // namespace nibble
