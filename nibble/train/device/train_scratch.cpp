#include "train/device/train_scratch.h"

#include "base/checked.h"

#include <algorithm>
#include <bit>

namespace nibble {
namespace {

constexpr int64_t slab_bytes = int64_t{3} << 29;  // bytes of logits, which their gradient overwrites
constexpr int64_t documents_of_tokens = 32;       // planned average number of tokens per document

}  // namespace

int64_t TrainScratch::documents(const TrainPassShape& shape) {
    return std::max(shape.rows, shape.tokens() / documents_of_tokens);
}

int64_t TrainScratch::page_tokens(const TrainPassShape& shape) {
    return round_up(shape.tokens(), kv_page_tokens) + kv_page_tokens * documents(shape);
}

int64_t TrainScratch::slab(int64_t tokens, int64_t vocab) {
    const int64_t most = std::max<int64_t>(128, slab_bytes / (2 * vocab) / 128 * 128);
    const int64_t slabs = (tokens + most - 1) / most;  // slabs have nearly equal sizes
    return std::min(tokens, round_up<int64_t>((tokens + slabs - 1) / slabs, 128));
}

Result<TrainScratch> TrainScratch::make(const TrainWeights& weights, const TrainPassShape& shape,
                                        const DeviceInfo& device, int64_t attention) {
    const int64_t n = shape.tokens(), w = weights.config().hidden, vocab = weights.config().vocab;
    TrainScratch s;
    int64_t rest = 0, largest_rest = 0;
    std::vector<StateLayout> kinds;
    s.workspace = std::max(cuda::back_workspace_bytes, cuda::norm_backward_workspace(w));
    for (size_t b = 0; b < weights.layers().size(); ++b) {
        const DeviceMixer& engine = *weights.layers()[b].mixer;
        NIBBLE_TRY(const TrainMixerSizes sizes, weights.mixer(b).sizes(n));
        int64_t of_block = whole(2 * padded_rows(n) * w), forward = sizes.forward;
        for (const int64_t bytes : sizes.kept) of_block += whole(bytes);
        if (!weights.layers()[b].config.post_norm.empty()) of_block += whole(2 * n * w);
        rest += of_block;
        largest_rest = std::max(largest_rest, of_block);
        if (auto problem = engine.attention()) {
            const StateLayout state = engine.state();
            problem->kv.page_stride = round_up(state.page_bytes, StateMemory::alignment);
            problem->most_segments = shape.rows;
            problem->most_rows = n;
            problem->most_tokens =
                static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(shape.seq, 1024))));
            problem->table_pitch = problem->most_tokens / kv_page_tokens;
            int64_t workspace = attention;
            if (attention == 0) {
                NIBBLE_TRY(const cuda::AttentionPlan plan, cuda::plan_attention(*problem, device));
                workspace = plan.workspace_bytes;
            }
            forward += whole(workspace);
            if (std::ranges::none_of(kinds, [&](const StateLayout& k) {
                    return k.page_bytes == state.page_bytes && k.window == state.window;
                })) {
                kinds.push_back(state);
                s.pages += pool_bytes({&state, 1}, page_tokens(shape), documents(shape));
            }
        }
        s.workspace = std::max(s.workspace, sizes.workspace);
        s.together = std::max({s.together, forward, sizes.backward});
    }
    s.together += weights.scratch_bytes(n);
    const auto blocks = std::ssize(weights.layers());
    s.kept = (shape.recompute == Recompute::block ? largest_rest : rest) + (blocks + 1) * whole(2 * n * w) +
             whole(2 * padded_rows(n) * w) + whole(4) + whole(4 * n * w) + 3 * whole(2 * n * w) + whole(s.workspace);
    const int64_t rows = slab(n, vocab);
    s.logits = whole(2 * rows * vocab) + whole(weights.head().rounded_bytes(rows)) + shape.taught +
               weights.head_scratch_bytes(rows);
    s.together = std::max(s.together, s.logits);
    return s;
}

}  // namespace nibble
