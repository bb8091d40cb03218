// Input: model.safetensors.index.json. It must be refused with a message, or give a map to sorted files that stay in
// the folder.
#include "io/shard_index.h"
#include "message.h"

#include <algorithm>
#include <filesystem>

using namespace nibble;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const auto index = parse_shard_index({reinterpret_cast<const char*>(data), size});
    if (!index.ok()) {
        require_message(index.error());
        return 0;
    }
    const std::filesystem::path folder = "/models/one";
    for (const std::string& shard : index->shards) {
        const std::string resolved = (folder / shard).lexically_normal().string();
        require(resolved.starts_with("/models/one/") && resolved.size() > 12);
        require(shard.find('\0') == shard.npos);
    }
    require(std::ranges::is_sorted(index->shards));
    std::vector<bool> used(index->shards.size());
    for (const auto& [name, shard] : index->shard_of) used.at(shard) = true;
    require(std::ranges::all_of(used, [](bool u) { return u; }));
    require(!index->total_size || *index->total_size >= 0);
    return 0;
}
