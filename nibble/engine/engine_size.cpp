#include "engine/engine_size.h"

#include "kernels/attention.h"

#include <algorithm>

namespace nibble {

Result<EngineSize> engine_size(EngineOptions o, const LanguageModel& model) {
    EngineSize s;
    const bool device = model.chooses();
    if (o.drafts < 0 || o.drafts > most_drafts)
        return fail("{} draft tokens are not in [0, {}]", o.drafts, most_drafts);
    if (o.drafter == DraftSource::prediction && !model.predicts())
        return fail("the model was loaded without layers for multi-token prediction");
    if (!(o.stretch == 0 || o.stretch > 1))
        return fail("the limit of how much prompts lengthen a step, {}, must be above 1, or 0", o.stretch);
    if (!(o.memory_share > 0 && o.memory_share <= 1))
        return fail("a memory share of {} is not in (0, 1]", o.memory_share);
    if (o.sequences <= 0) o.sequences = device ? 1024 : 64;
    o.sequences = std::min<int64_t>(o.sequences, 4096);
    if (o.step_rows <= 0) o.step_rows = device ? 8192 : 512;
    if (o.mixed_rows <= 0) o.mixed_rows = std::max<int64_t>(1, o.step_rows / 8);
    const int64_t context = o.context > 0 ? std::min(o.context, model.config().context) : model.config().context;

    const std::vector<StateLayout> layouts = model.states();
    const int64_t state = pool_bytes(layouts, 0, 1), tile = pool_bytes(layouts, kv_page_tokens, 0);
    int64_t bytes = o.kv_memory;
    if (bytes <= 0) {
        NIBBLE_TRY(const int64_t free, model.free_bytes(o.step_rows, 2 * o.sequences));
        bytes = static_cast<int64_t>(static_cast<double>(free) * o.memory_share);
    }
    if (state > 0) {  // at most half of the memory
        const int64_t each = o.drafts > 0 ? 2 : 1;
        o.sequences = std::clamp<int64_t>(bytes / 2 / state / each * 4 / 5, 1, o.sequences);
        if (o.prefix_cache) s.state_copies = std::clamp<int64_t>(o.sequences / 4, 2, 256);
        s.states = o.sequences * each + s.state_copies;
        bytes -= s.states * state;
    }
    o.step_rows = std::max(o.step_rows, o.sequences + 1);
    o.mixed_rows = std::clamp<int64_t>(o.mixed_rows, 1, o.step_rows - o.sequences);
    const int64_t whole = (context + kv_page_tokens - 1) / kv_page_tokens * kv_page_tokens;
    s.tokens = o.sequences * whole;
    if (tile > 0) s.tokens = std::min(s.tokens, bytes / tile * kv_page_tokens);
    if (bytes < 0 || s.tokens < kv_page_tokens)
        return fail("{} bytes of KV cache memory are too few: {} tokens of one sequence need {}; increase --kv-memory",
                    std::max<int64_t>(bytes, 0) + s.states * state, kv_page_tokens, tile + s.states * state);
    o.context = context;
    o.kv_memory = pool_bytes(layouts, s.tokens, s.states);
    s.options = std::move(o);
    return s;
}

int64_t longest_text(const KvPool& pool, int64_t step_rows, int64_t most) {
    int64_t low = 0, high = most;
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (pool.pages_for(middle, step_rows) <= pool.pages())
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

}  // namespace nibble
