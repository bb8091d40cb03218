#include "model/state_plan.h"

#include "kernels/attention.h"
#include "kernels/delta_rule.h"
#include "kernels/indexer.h"
#include "kernels/ssm.h"

#include <algorithm>

namespace nibble {
namespace {

int most(int parts, int ranks) { return (parts + ranks - 1) / ranks; }
int same(int parts, int ranks) { return std::max(1, parts / ranks); }

int64_t index_page_bytes(const std::optional<IndexerConfig>& c) {
    if (!c || c->owner >= 0) return 0;
    return IndexShape{.heads = c->heads, .dim = c->dim, .type = KvType::bf16}.page_bytes();
}

// A page of pooled keys and of what they are pooled from, in FP32 (model/cpu/compressor.h).
int64_t pooled_page_bytes(int dim, int64_t rate, bool overlaps) {
    const int64_t width = int64_t{dim} * (overlaps ? 2 : 1), slots = std::max<int64_t>(1, kv_page_tokens / rate);
    return 4 * (kv_page_tokens * 2 * width + slots * dim);
}

struct Planner {
    const ModelConfig& model;
    int ranks;
    LatentCache latent;

    StateLayout operator()(const AttentionConfig& c) const {
        if (c.kv_block >= 0) return {};
        const bool own = c.qk_norm != QkNorm::joined && !c.indexer;
        const KvShape kv{own ? same(c.kv_heads, ranks) : c.kv_heads, c.head_dim, c.value_dim()};
        const int64_t reach = c.window == 0 || c.chunk == 0 ? std::max(c.window, c.chunk) : std::min(c.window, c.chunk);
        return {kv_page_bytes(kv) + index_page_bytes(c.indexer), reach, 0};
    }
    StateLayout operator()(const LatentAttentionConfig& c) const {
        const KvShape heads{c.indexer ? c.heads : most(c.heads, ranks), c.nope_dim + c.rope.dims, c.v_dim};
        const int64_t bytes = latent == LatentCache::heads ? kv_page_bytes(heads)
                                                           : 2 * kv_page_tokens * (int64_t{c.kv_rank} + c.rope.dims);
        return {.page_bytes = bytes + index_page_bytes(c.indexer)};
    }
    StateLayout operator()(const CompressedAttentionConfig& c) const {
        int64_t bytes = kv_page_bytes({1, c.dim, c.dim});
        if (c.rate > 0) bytes += pooled_page_bytes(c.dim, c.rate, c.overlaps);
        if (c.rate > 0 && c.indexer) bytes += pooled_page_bytes(c.indexer->dim, c.rate, c.overlaps);
        return {bytes, c.rate > 0 ? 0 : c.window, 0};
    }
    StateLayout operator()(MambaConfig c) const {
        if (c.norm == MambaConfig::Norm::none || c.groups % ranks == 0)
            c.heads = most(c.heads, ranks), c.groups = same(c.groups, ranks);
        return {.floats = (c.conv - 1) * c.channels() + ssm_state_elements(c.heads, c.head_dim, c.state)};
    }
    StateLayout operator()(GatedDeltaConfig c) const {
        const int values = c.values_per_key();
        c.key_heads = most(c.key_heads, ranks), c.value_heads = c.key_heads * values;
        return {.floats = (c.conv - 1) * c.channels() + c.value_heads * delta_state_elements(c.key_dim, c.value_dim)};
    }
    StateLayout operator()(const ShortConvConfig& c) const { return {.floats = (c.taps - 1) * model.hidden}; }
    StateLayout operator()(const ParallelConfig& c) const {
        StateLayout all;
        for (const Branch& branch : c.branches) {
            const StateLayout one = std::visit(*this, branch.mixer);
            if (one.page_bytes > 0) all.page_bytes = one.page_bytes, all.window = one.window;
            all.floats += one.floats;
        }
        return all;
    }
    StateLayout operator()(const MlpConfig&) const { return {}; }
    StateLayout operator()(const MoeConfig&) const { return {}; }
    StateLayout operator()(const PerLayerInputConfig&) const { return {}; }
};

}  // namespace

std::vector<StateLayout> planned_states(const ModelConfig& model, int ranks, LatentCache latent) {
    std::vector<StateLayout> states;
    for (const BlockConfig& block : model.blocks)
        states.push_back(std::visit(Planner{model, ranks, latent}, block.mixer));
    return states;
}

int64_t token_bytes(const std::vector<StateLayout>& states) {
    int64_t bytes = 0;
    for (const StateLayout& s : states) bytes += s.page_bytes;
    return bytes / kv_page_tokens;
}

int64_t sequence_bytes(const std::vector<StateLayout>& states) {
    int64_t floats = 0;
    for (const StateLayout& s : states) floats += s.floats;
    return 4 * floats;
}

}  // namespace nibble
