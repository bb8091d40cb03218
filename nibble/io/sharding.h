// Splits a list of tensors over files as transformers' save_pretrained does (huggingface_hub, serialization/_base.py):
// in order, with a new file when the next tensor would exceed the limit. A tensor over the limit gets its own file; the
// file that was being filled stays open.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace nibble {

inline constexpr int64_t default_max_shard_bytes = 5'000'000'000;
inline constexpr std::string_view shard_index_name = "model.safetensors.index.json";

struct ShardItem {
    std::string name;
    int64_t bytes = 0;
};

struct ShardPlan {
    std::vector<std::string> files;  // "model.safetensors", or "model-00001-of-00002.safetensors" ...
    std::vector<int> file_of;        // index in `files`, one per item
    int64_t total_bytes = 0;

    bool needs_index() const { return files.size() > 1; }
};

// Returns the plan; without items it has no files. Errors: a limit below 1, a negative size, a total beyond 63 bits.
Result<ShardPlan> plan_shards(std::span<const ShardItem> items, int64_t max_shard_bytes = default_max_shard_bytes);

// Returns the text of the index as transformers writes it: {"metadata": {"total_size"}, "weight_map"}, sorted keys, two
// spaces, ASCII, a newline at the end. Errors: a name that is duplicate or not UTF-8.
Result<std::string> shard_index_json(std::span<const ShardItem> items, const ShardPlan& plan);

}  // namespace nibble
