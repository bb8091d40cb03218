// Assigns the rows and parameters of a step to the processes of a group (parallel/rank_group.h).
#pragma once

#include "parallel/rank_group.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace nibble {

struct TrainRanks {
    RankGroup* group = nullptr;  // null: a single process
    std::vector<int> owner;      // by parameter id: the rank that adds its gradient, keeps its state and updates it

    int rank() const { return group ? group->rank() : 0; }
    int size() const { return group ? group->size() : 1; }
    bool owns(size_t id) const { return !group || owner[id] == rank(); }
    // Rank r has rows [rows_begin(r), rows_begin(r + 1)) of `rows`. They are adjacent, so that most nodes of the
    // gradient tree belong to one rank.
    int64_t rows_begin(int64_t rows, int of) const { return rows * of / size(); }
    int64_t rows_begin(int64_t rows) const { return rows_begin(rows, rank()); }
    int64_t rows_end(int64_t rows) const { return rows_begin(rows, rank() + 1); }

    // Assigns parameters of these sizes: the largest first, each to the rank with the least so far.
    static TrainRanks make(RankGroup* group, std::span<const int64_t> sizes) {
        TrainRanks ranks{.group = group};
        if (!group) return ranks;
        std::vector<size_t> order(sizes.size());
        std::iota(order.begin(), order.end(), size_t{0});
        std::ranges::stable_sort(order, [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
        std::vector<int64_t> load(static_cast<size_t>(group->size()));
        ranks.owner.resize(sizes.size());
        for (const size_t id : order) {
            const auto least = std::ranges::min_element(load);
            *least += sizes[id];
            ranks.owner[id] = static_cast<int>(least - load.begin());
        }
        return ranks;
    }
};

}  // namespace nibble
