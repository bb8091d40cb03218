#include "train/rank_rows.h"

#include "train/rank_message.h"

namespace nibble {

// A row belongs to the rank whose share of the tokens contains the row's middle.
std::vector<int64_t> divide_rows(std::span<const int64_t> tokens, int ranks) {
    const int64_t all = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
    std::vector<int64_t> begins{0};
    int64_t before = 0, row = 0;
    for (int r = 1; r < ranks; ++r) {
        for (; row < std::ssize(tokens); ++row) {
            const int64_t size = tokens[static_cast<size_t>(row)];
            if ((2 * before + size) * ranks >= 2 * all * r) break;
            before += size;
        }
        begins.push_back(row);
    }
    begins.push_back(std::ssize(tokens));
    return begins;
}

Result<std::vector<float>> of_all_ranks(RankGroup* group, std::vector<float> own) {
    if (!group) return own;
    RankBytes bytes;
    put_numbers(bytes, own);
    NIBBLE_TRY(const auto from, group->gather(std::move(bytes)));
    std::vector<float> all;
    for (const RankBytes& part : from) {
        const auto numbers = RankReader(part).numbers<float>();
        all.insert(all.end(), numbers.begin(), numbers.end());
    }
    return all;
}

Status row_log_probs(RankGroup* group, std::span<const TrainBatch* const> rows,
                     const std::function<Status(const TrainBatch& row, std::span<float> out)>& own, const OfRow& each) {
    std::vector<int64_t> tokens;
    for (const TrainBatch* row : rows) tokens.push_back(row->size());
    const std::vector<int64_t> begins = divide_rows(tokens, group ? group->size() : 1);
    const auto rank = static_cast<size_t>(group ? group->rank() : 0);
    std::vector<float> values;
    for (int64_t i = begins[rank]; i < begins[rank + 1]; ++i) {
        const auto size = static_cast<size_t>(tokens[static_cast<size_t>(i)]);
        values.resize(values.size() + size);
        NIBBLE_CHECK(own(*rows[static_cast<size_t>(i)], std::span(values).last(size)));
    }
    NIBBLE_TRY(values, of_all_ranks(group, std::move(values)));
    std::span<const float> rest = values;
    for (size_t i = 0; i < rows.size(); ++i) {
        const auto size = static_cast<size_t>(tokens[i]);
        if (size > rest.size()) return fail("the ranks have different rows");
        NIBBLE_CHECK(each(i, rest.first(size)));
        rest = rest.subspan(size);
    }
    return Ok{};
}

Status ask_of_others(const RowObjective& objective, std::span<const int64_t> tokens, std::pair<int64_t, int64_t> own,
                     std::span<const float> log_probs, std::span<double> losses) {
    std::vector<float> slopes;
    for (int64_t row = 0; row < std::ssize(tokens); ++row) {
        const auto at = static_cast<size_t>(row), size = static_cast<size_t>(tokens[at]);
        if (size > log_probs.size()) return fail("the ranks have different rows");
        if (row < own.first || row >= own.second) {
            slopes.assign(size, 0.0f);
            NIBBLE_CHECK(objective(row, log_probs.first(size), slopes, losses[at]));
        }
        log_probs = log_probs.subspan(size);
    }
    return Ok{};
}

}  // namespace nibble
