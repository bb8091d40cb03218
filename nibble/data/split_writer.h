// Writes the shards of one split, document by document.
#pragma once

#include "data/document.h"
#include "data/manifest.h"
#include "data/shard.h"

#include <filesystem>
#include <optional>

namespace nibble {

class DataSplitWriter {
public:
    // Files are named FOLDER/NAME_000000.bin and so on.
    DataSplitWriter(std::filesystem::path folder, std::string name, int width, int64_t shard_tokens)
        : folder_(std::move(folder)), name_(std::move(name)), width_(width), shard_tokens_(shard_tokens) {}

    // Adds a document. One that is longer than a shard is split. learned: as in TokenDocument.
    Status add(std::span<const TokenId> ids, const std::vector<bool>& learned, size_t learned_begin);
    // Closes the last shard.
    Result<DataSplit> finish();

private:
    Status close_shard();

    std::filesystem::path folder_;
    std::string name_;
    int width_;
    int64_t shard_tokens_;
    DataSplit split_;
    std::optional<TokenShardWriter> shard_;
    std::vector<uint64_t> starts_;
    std::vector<std::byte> mask_;
    int64_t learned_ = 0;
};

}  // namespace nibble
