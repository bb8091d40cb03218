#include "io/sharding.h"

#include "base/checked.h"
#include "io/json_events.h"

#include <nlohmann/json.hpp>

namespace nibble {

Result<ShardPlan> plan_shards(std::span<const ShardItem> items, int64_t max_shard_bytes) {
    if (max_shard_bytes < 1) return fail("shard size {}: must be at least 1 byte", max_shard_bytes);
    ShardPlan plan;
    plan.file_of.resize(items.size());
    // Shards are numbered when they are closed, so an oversized tensor comes before the shard that was open at that
    // time.
    std::vector<size_t> open;
    int64_t open_bytes = 0;
    int shards = 0;
    const auto close = [&] {
        for (const size_t i : open) plan.file_of[i] = shards;
        ++shards;
        open.clear();
        open_bytes = 0;
    };
    for (size_t i = 0; i < items.size(); ++i) {
        const int64_t bytes = items[i].bytes;
        const auto total = checked_add(plan.total_bytes, bytes);
        if (bytes < 0 || !total)
            return fail("tensor {}: size {} is negative or overflows", show_name(items[i].name), bytes);
        plan.total_bytes = *total;
        if (bytes > max_shard_bytes) {
            plan.file_of[i] = shards++;
            continue;
        }
        if (bytes > max_shard_bytes - open_bytes) close();
        open.push_back(i);
        open_bytes += bytes;
    }
    if (!open.empty()) close();

    if (shards == 1) plan.files = {"model.safetensors"};
    for (int i = 0; shards > 1 && i < shards; ++i)
        plan.files.push_back(fmt::format("model-{:05d}-of-{:05d}.safetensors", i + 1, shards));
    return plan;
}

Result<std::string> shard_index_json(std::span<const ShardItem> items, const ShardPlan& plan) {
    nlohmann::json weight_map = nlohmann::json::object();  // sorts its keys
    for (size_t i = 0; i < items.size(); ++i)
        if (!weight_map.emplace(items[i].name, plan.files[plan.file_of[i]]).second)
            return fail("duplicate tensor name {}", show_name(items[i].name));
    const nlohmann::json index{{"metadata", {{"total_size", plan.total_bytes}}}, {"weight_map", std::move(weight_map)}};
    try {
        return index.dump(2, ' ', true) + "\n";
    } catch (const nlohmann::json::exception&) {
        return fail("a tensor name is not UTF-8");
    }
}

}  // namespace nibble
