#include "cli/rank_device.h"

#include <algorithm>

namespace nibble {

Status choose_rank_device(int wanted, const RankPlace& place, DeviceChoice& device) {
    const int ranks = place.alone() ? std::max(1, wanted) : place.size;
    NIBBLE_CHECK(open_device(device));
    if (ranks == 1) return Ok{};
    NIBBLE_TRY(const auto list, list_devices());
    const int here = std::min(ranks, local_ranks().value_or(ranks));
    if (device.index + here > std::ssize(list))
        return fail("--device cuda: {} ranks on this machine need a GPU each, it has {}", here, list.size());
    device.index += local_rank().value_or(place.rank);
    return open_device(device).ok() ? Status(Ok{}) : Status(open_device(device).error());
}

}  // namespace nibble
