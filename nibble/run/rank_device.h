// Chooses the GPU of a rank.
#pragma once

#include "parallel/rank_group.h"
#include "tensor/device.h"

#include <span>

namespace nibble {

// Returns the index of a rank's GPU among the `visible` ones, from `first` on. wanted: value of --ranks, 0 if not
// given. A launcher that binds tasks to GPUs (srun --gpus-per-task) shows each task only its own GPU. So ranks of a
// launcher may see fewer GPUs than there are ranks, and check_own_devices() compares their GPUs later. Error: too few
// GPUs for ranks that nibble would start itself.
Result<int> rank_device_index(int wanted, const RankPlace& place, int first, int visible);

// The same for the GPUs that this process sees.
Status choose_rank_device(int wanted, const RankPlace& place, DeviceChoice& device);

// Called by all ranks. Error: two of them have the same GPU.
Status check_own_devices(const DeviceChoice& device, RankGroup* ranks);
// Returns an error that names two equal identities. Empty identities are unknown and equal no other.
Status check_distinct_devices(std::span<const std::string> by_rank);

}  // namespace nibble
