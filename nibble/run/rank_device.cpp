#include "run/rank_device.h"

#include <algorithm>

namespace nibble {

Result<int> rank_device_index(int wanted, const RankPlace& place, int first, int visible) {
    const int usable = visible - first;
    if (!place.alone()) return first + place.local_rank.value_or(place.rank) % usable;
    if (wanted > usable)
        return fail("--device cuda: {} ranks on this machine need one GPU each, but it has {}", wanted, visible);
    return first;
}

Status choose_rank_device(int wanted, const RankPlace& place, DeviceChoice& device) {
    NIBBLE_CHECK(open_device(device));
    NIBBLE_TRY(const auto list, list_devices());
    NIBBLE_TRY(device.index, rank_device_index(wanted, place, device.index, static_cast<int>(list.size())));
    return open_device(device).ok() ? Status(Ok{}) : Status(open_device(device).error());
}

Status check_distinct_devices(std::span<const std::string> by_rank) {
    for (size_t rank = 1; rank < by_rank.size(); ++rank) {
        const auto earlier = by_rank.first(rank);
        const auto same = std::ranges::find(earlier, by_rank[rank]);
        if (same != earlier.end() && !same->empty())
            return fail("ranks {} and {} have the same GPU ({}); start one rank per GPU", same - earlier.begin(), rank,
                        *same);
    }
    return Ok{};
}

Status check_own_devices(const DeviceChoice& device, RankGroup* ranks) {
    if (!ranks || !device.cuda) return Ok{};
    NIBBLE_TRY(const DeviceInfo own, open_device(device));
    const auto* bytes = reinterpret_cast<const std::byte*>(own.uuid.data());
    NIBBLE_TRY(const auto all, ranks->gather({bytes, bytes + own.uuid.size()}));
    std::vector<std::string> by_rank;
    for (const RankBytes& one : all) by_rank.emplace_back(reinterpret_cast<const char*>(one.data()), one.size());
    return check_distinct_devices(by_rank);
}

}  // namespace nibble
