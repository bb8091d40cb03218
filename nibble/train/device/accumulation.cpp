#include "train/device/accumulation.h"

#include <algorithm>

namespace nibble {

AccumulationPlan AccumulationPlan::make(int64_t micro_batches) {
    AccumulationPlan plan;
    plan.buffers = 0;
    std::vector<int> levels, spare;  // of a level: its buffer, -1: none
    const auto take = [&] {
        if (spare.empty()) return plan.buffers++;
        const auto least = std::ranges::min_element(spare);
        const int buffer = *least;
        spare.erase(least);
        return buffer;
    };
    for (int64_t i = 0; i < micro_batches; ++i) {
        Piece piece{.target = take()};
        int carry = piece.target;
        size_t level = 0;
        for (; level < levels.size() && levels[level] >= 0; ++level) {
            // The earlier one is the left operand; its buffer goes on.
            piece.adds.emplace_back(levels[level], carry);
            spare.push_back(carry);
            carry = levels[level];
            levels[level] = -1;
        }
        if (level == levels.size()) levels.push_back(-1);
        levels[level] = carry;
        plan.pieces.push_back(std::move(piece));
    }
    int sum = -1;
    for (const int level : levels) {
        if (level < 0) continue;
        if (sum >= 0) plan.last.emplace_back(level, sum);
        sum = level;
    }
    plan.result = std::max(sum, 0);
    plan.buffers = std::max(plan.buffers, 1);
    return plan;
}

}  // namespace nibble
