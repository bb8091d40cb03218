#include "data/split_writer.h"

#include "io/atomic_file.h"

#include <algorithm>

namespace nibble {

Status DataSplitWriter::add(std::span<const TokenId> ids, const std::vector<bool>& learned, size_t learned_begin) {
    while (!ids.empty()) {
        if (!shard_) {
            const auto path = folder_ / fmt::format("{}_{:06}.bin", name_, split_.shards.size());
            NIBBLE_TRY(shard_, TokenShardWriter::create(path, width_));
        }
        const auto at = static_cast<size_t>(shard_->tokens());
        const size_t count = std::min(ids.size(), static_cast<size_t>(shard_tokens_));
        starts_.push_back(at);
        mask_.resize((at + count + 7) / 8);
        for (size_t i = 0; i < count; ++i) {
            if (!learned.empty() && !learned[learned_begin + i]) continue;
            mask_[(at + i) / 8] |= std::byte(1u << (at + i) % 8);
            ++learned_;
        }
        NIBBLE_CHECK(shard_->add(ids.first(count)));
        ids = ids.subspan(count);
        learned_begin += count;
        if (shard_->tokens() >= shard_tokens_) NIBBLE_CHECK(close_shard());
    }
    return Ok{};
}

Status DataSplitWriter::close_shard() {
    DataShardEntry entry{.name = fmt::format("{}_{:06}", name_, split_.shards.size()),
                         .tokens = shard_->tokens(),
                         .documents = static_cast<int64_t>(starts_.size()),
                         .learned = learned_};
    entry.masked = entry.learned < entry.tokens;
    NIBBLE_TRY(entry.hash, shard_->finish());
    NIBBLE_CHECK(write_file_atomically(folder_ / (entry.name + ".docs"), std::as_bytes(std::span(starts_))));
    if (entry.masked) NIBBLE_CHECK(write_file_atomically(folder_ / (entry.name + ".mask"), Bytes(mask_)));
    split_.shards.push_back(std::move(entry));
    shard_.reset();
    starts_.clear();
    mask_.clear();
    learned_ = 0;
    return Ok{};
}

Result<DataSplit> DataSplitWriter::finish() {
    if (shard_) NIBBLE_CHECK(close_shard());
    return std::move(split_);
}

}  // namespace nibble
