// The GPU of a rank.
#pragma once

#include "parallel/rank_group.h"
#include "tensor/device.h"

#include <span>

namespace nibble {

// Index of the GPU that a rank takes, of the `visible` ones from `first` on. wanted: of --ranks, 0 where it was not
// given. A launcher that binds its tasks to GPUs (srun --gpus-per-task) shows each task its own alone; so ranks that a
// launcher started may see fewer GPUs than there are ranks, and check_own_devices() compares them at the meeting.
// Error: ranks that nibble would start itself, and too few GPUs for them.
Result<int> rank_device_index(int wanted, const RankPlace& place, int first, int visible);

// The same with the GPUs that this process sees.
Status choose_rank_device(int wanted, const RankPlace& place, DeviceChoice& device);

// All ranks call it. Error: two of them have the same GPU.
Status check_own_devices(const DeviceChoice& device, RankGroup* ranks);
// Names two equal identities; an empty one is not known and equals no other.
Status check_distinct_devices(std::span<const std::string> by_rank);

}  // namespace nibble
