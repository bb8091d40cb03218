// The optimizer of a GPU trainer (formulas: train/optimizer.h). AdamW is one kernel launch over all contiguous
// elements. Muon updates the matrices of blocks one by one, each as a parameter of its own.
#pragma once

#include "kernels/optimizer_cuda.h"
#include "train/device/device_ranks.h"
#include "train/device/train_weights.h"

#include <optional>

namespace nibble {

class DeviceOptimizer {
public:
    // Error: Muon with several GPUs, whose shards divide matrices.
    static Status check(const TrainOptimizer& options, int ranks);
    // Bytes in addition to the states.
    static int64_t bytes(const TrainOptimizer& options, const TrainWeights& weights);
    // The weights must outlive it.
    static Result<DeviceOptimizer> create(const TrainOptimizer& options, uint64_t seed, const TrainWeights& weights,
                                          const DeviceInfo& device, const Stream& stream);

    // Runs update `step` (from 1) of the elements on this GPU; no effect if *clip is NaN.
    Status update(const DeviceRanks::Sum& sum, double learning_rate, int64_t step, const float* clip,
                  const Stream& stream) const;

private:
    DeviceOptimizer(const TrainOptimizer& options, uint64_t seed, const TrainWeights& weights)
        : options_(options), seed_(seed), weights_(&weights) {}
    // Updates elements [begin, end) of the flat arrays, which must be all matrices or all vectors.
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
