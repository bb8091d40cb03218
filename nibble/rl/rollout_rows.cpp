#include "rl/rollout_rows.h"

#include <algorithm>
#include <bit>

namespace nibble {

std::vector<RolloutRow> rollout_rows(const RolloutBatch& batch, size_t first, size_t last, int64_t row_tokens) {
    std::vector<RolloutRow> rows;
    for (size_t i = first; i < last; ++i) {
        const Rollout& r = batch.rollouts[i];
        if (r.tokens.empty()) continue;
        const RolloutPrompt& prompt = batch.prompts[r.prompt];
        const auto tokens = std::ssize(prompt.tokens) + std::ssize(r.tokens) - 1;
        if (rows.empty() || rows.back().batch.seq + tokens > row_tokens) rows.push_back({.batch = {.rows = 1}});
        TrainBatch& row = rows.back().batch;
        row.documents.push_back(row.seq);
        row.tokens.insert(row.tokens.end(), prompt.tokens.begin(), prompt.tokens.end());
        row.tokens.insert(row.tokens.end(), r.tokens.begin(), r.tokens.end() - 1);
        row.labels.insert(row.labels.end(), prompt.tokens.size() - 1, -1);
        rows.back().parts.push_back({i, row.labels.size(), r.tokens.size()});
        for (size_t t = 0; t < r.tokens.size(); ++t) row.labels.push_back(r.written[t] ? r.tokens[t] : -1);
        row.seq += tokens;
    }
    return rows;
}

int64_t even_row_tokens(const RolloutBatch& batch, size_t first, size_t last, int64_t row_tokens) {
    std::vector<int64_t> sizes;
    for (size_t i = first; i < last; ++i) {
        const Rollout& r = batch.rollouts[i];
        if (!r.tokens.empty()) sizes.push_back(std::ssize(batch.prompts[r.prompt].tokens) + std::ssize(r.tokens) - 1);
    }
    const auto rows_of = [&](int64_t limit) {  // the same rule as in rollout_rows()
        uint64_t rows = 0;
        int64_t room = 0;
        for (const int64_t size : sizes) {
            if (rows == 0 || size > room) ++rows, room = limit;
            room -= size;
        }
        return rows;
    };
    const uint64_t most = std::bit_ceil(rows_of(row_tokens));
    int64_t low = 0, high = row_tokens;  // invariant: rows_of(high) <= most < rows_of(low), or low is 0
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        (rows_of(middle) <= most ? high : low) = middle;
    }
    return high;
}

// Two adjacent rows together hold more than row_tokens, and no row but the last has room for another answer. Each fact
// gives a bound.
int64_t most_rollout_rows(int64_t rollouts, int64_t length, int64_t row_tokens) {
    if (row_tokens < length) return rollouts;
    const int64_t tokens = rollouts * length;
    return std::min({rollouts, 2 * tokens / row_tokens + 1, tokens / (row_tokens - length + 1) + 1});
}

}  // namespace nibble
