// The update of a GPU trainer (train/optimizer.h has the formulas): AdamW in one launch over all that lies adjacent;
// with Muon the matrices of blocks one after the other, each a parameter of its own.
#pragma once

#include "kernels/optimizer_cuda.h"
#include "train/device/device_ranks.h"
#include "train/device/train_weights.h"

#include <optional>

namespace nibble {

class DeviceOptimizer {
public:
    // Error: Muon on several GPUs, whose shards cut matrices.
    static Status check(const TrainOptimizer& options, int ranks);
    // Beside the states.
    static int64_t bytes(const TrainOptimizer& options, const TrainWeights& weights);
    // The weights outlive it.
    static Result<DeviceOptimizer> create(const TrainOptimizer& options, uint64_t seed, const TrainWeights& weights,
                                          const DeviceInfo& device, const Stream& stream);

    // Update `step` (from 1) of what lies here; nothing where *clip is NaN.
    Status update(const DeviceRanks::Sum& sum, double learning_rate, int64_t step, const float* clip,
                  const Stream& stream) const;

private:
    DeviceOptimizer(const TrainOptimizer& options, uint64_t seed, const TrainWeights& weights)
        : options_(options), seed_(seed), weights_(&weights) {}
    // Elements [begin, end) of the flat arrays, all matrices or all vectors.
    Status adamw(const cuda::AdamW& a, const DeviceRanks::Sum& sum, int64_t begin, int64_t end, int64_t step,
                 const Stream& stream) const;
    Status muon(const DeviceRanks::Sum& sum, double learning_rate, int64_t step, const float* clip,
                const Stream& stream) const;
    cuda::StateDraws draws(int64_t step) const { return {seed_, static_cast<uint32_t>(step)}; }

    TrainOptimizer options_;
    uint64_t seed_ = 0;
    const TrainWeights* weights_ = nullptr;
    std::optional<DeviceArena> memory_;
    cuda::FlatOwners owners_;
    std::byte* workspace_ = nullptr;
};

}  // namespace nibble
