#include "train/accumulation.h"

#include <algorithm>
#include <bit>

namespace nibble {

AccumulationPlan AccumulationPlan::make(int64_t micro_batches) {
    AccumulationPlan plan;
    plan.buffers = 0;
    std::vector<int> levels, spare;  // levels: buffer of each level, -1: none
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
            // The earlier sum is the left operand, and its buffer holds the result.
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

Result<std::vector<int>> piece_owners(int64_t pieces, int size, Sharding sharding) {
    const int64_t each = pieces / size;
    const int64_t of_tree = sharding == Sharding::states ? each : size;
    const bool node = std::has_single_bit(static_cast<uint64_t>(of_tree)) || each == 1;
    if (size > 1 && (pieces % size || !node))
        return fail("{} micro-batches cannot be divided between {} ranks: {}", pieces, size,
                    sharding == Sharding::states
                        ? "the rows of a step must be micro_batch times the number of ranks times a power of two"
                        : "the rows of a step must be a multiple of micro_batch times the number of ranks, and that "
                          "number a power of two unless the rows are exactly that product");
    std::vector<int> owner;
    for (int64_t p = 0; p < pieces; ++p)
        owner.push_back(static_cast<int>(sharding == Sharding::states ? p / std::max<int64_t>(each, 1) : p % size));
    return owner;
}

}  // namespace nibble
