// The GPU of a rank.
#pragma once

#include "parallel/rank_group.h"
#include "tensor/device.h"

namespace nibble {

// Ranks of one machine take a GPU each, from the one that `device` names on. wanted: of --ranks, 0 where it was not
// given. Error: the machine has too few.
Status choose_rank_device(int wanted, const RankPlace& place, DeviceChoice& device);

}  // namespace nibble
