#include "quant/block_spans.h"

#include <algorithm>

namespace nibble {
namespace {

// Returns the first block whose results the mixer reads; `self` if there is none.
int64_t first_owner(const MixerConfig& mixer, int64_t self) {
    int64_t first = self;
    const auto reads = [&](int owner) {
        if (owner >= 0) first = std::min<int64_t>(first, owner);
    };
    const auto chosen = [&](const std::optional<IndexerConfig>& indexer) {
        if (indexer) reads(indexer->owner);
    };
    if (const auto* attention = std::get_if<AttentionConfig>(&mixer)) {
        reads(attention->kv_block);
        chosen(attention->indexer);
    }
    if (const auto* latent = std::get_if<LatentAttentionConfig>(&mixer)) chosen(latent->indexer);
    if (const auto* compressed = std::get_if<CompressedAttentionConfig>(&mixer)) chosen(compressed->indexer);
    if (const auto* parallel = std::get_if<ParallelConfig>(&mixer))
        for (const Branch& branch : parallel->branches) first = std::min(first, first_owner(branch.mixer, self));
    return first;
}

}  // namespace

std::vector<std::pair<int64_t, int64_t>> block_spans(const ModelConfig& config) {
    std::vector<std::pair<int64_t, int64_t>> spans;
    for (int64_t b = 0; b < std::ssize(config.blocks); ++b) {
        int64_t first = first_owner(config.blocks[static_cast<size_t>(b)].mixer, b);
        for (; !spans.empty() && spans.back().second > first; spans.pop_back())
            first = std::min(first, spans.back().first);
        spans.emplace_back(first, b + 1);
    }
    return spans;
}

}  // namespace nibble
