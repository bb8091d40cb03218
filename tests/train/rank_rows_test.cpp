// Tests rows of unequal lengths, and functions of their log-probabilities, with several ranks: the bits are those of
// one rank.
#include "train/rank_threads.h"
#include "train/small_trainer.h"

#include <mutex>

namespace nibble::test {
namespace {

TEST(RankRows, AreDividedByTheirTokens) {
    using List = std::vector<int64_t>;
    const struct {
        List tokens;
        int ranks;
        List begins;
    } cases[] = {{{}, 2, {0, 0, 0}},
                 {{5}, 1, {0, 1}},
                 {{5}, 3, {0, 0, 1, 1}},
                 {{4, 4, 4, 4}, 2, {0, 2, 4}},
                 {{4, 4, 4, 4, 4, 4}, 3, {0, 2, 4, 6}},
                 {{9, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 2, {0, 1, 10}},
                 {{1, 1, 1, 1, 1, 1, 1, 1, 1, 9}, 2, {0, 9, 10}},
                 {{1, 100, 1}, 3, {0, 1, 2, 3}},
                 {{0, 0}, 2, {0, 0, 2}}};
    for (const auto& c : cases) EXPECT_EQ(divide_rows(c.tokens, c.ranks), c.begins) << testing::PrintToString(c.tokens);
    // No rank has more than its share plus half a row at each end.
    for (int ranks = 1; ranks < 9; ++ranks)
        for (uint32_t seed = 0; seed < 20; ++seed) {
            std::mt19937 random(seed);
            List tokens(ranks + seed);
            int64_t all = 0, longest = 0;
            for (int64_t& t : tokens) t = 1 + random() % 50, all += t, longest = std::max(longest, t);
            const List begins = divide_rows(tokens, ranks);
            ASSERT_EQ(std::ssize(begins), ranks + 1);
            for (int r = 0; r < ranks; ++r) {
                ASSERT_LE(begins[r], begins[r + 1]);
                EXPECT_LE(std::accumulate(tokens.begin() + begins[r], tokens.begin() + begins[r + 1], int64_t{0}),
                          all / ranks + 1 + longest);
            }
        }
}

// Returns rows of 11 to 43 tokens.
std::vector<TrainBatch> uneven_rows(int count) {
    std::vector<TrainBatch> rows;
    for (int r = 0; r < count; ++r) rows.push_back(random_batch(1, 11 + r * 29 % 33, 48, 100 + r));
    return rows;
}

struct ObjectiveSeen {
    std::vector<double> losses, norms;
    std::vector<float> masters, log_probs, scales;
    std::vector<int64_t> values;
    std::vector<std::vector<int64_t>> asked;
    bool operator==(const ObjectiveSeen& o) const {
        return losses == o.losses && norms == o.norms && masters == o.masters && log_probs == o.log_probs &&
               scales == o.scales && values == o.values;
    }
};

Status train_objective(RankGroup* group, const TrainerOptions& like, int rows, ObjectiveSeen& seen) {
    ThreadPool pool(1);
    TrainerOptions options = like;
    options.ranks = group;
    const auto trainer = small_trainer(pool, options);
    const std::vector<TrainBatch> batches = uneven_rows(rows);
    std::vector<const TrainBatch*> asked;
    for (const TrainBatch& b : batches) asked.push_back(&b);
    if (trainer->cache_scales()) NIBBLE_CHECK(trainer->calibrate(batches));
    trainer->begin(0, 3);
    for (int s = 0; s < 3; ++s) {
        std::vector<int64_t> order;
        const RowObjective objective = [&](int64_t row, std::span<const float> log_probs, std::span<float> slopes,
                                           double& loss) -> Status {
            order.push_back(row);
            for (size_t t = 0; t < log_probs.size(); ++t) {
                loss -= (0.01 + 0.001 * static_cast<double>(row)) * std::exp(double{log_probs[t]});
                slopes[t] = static_cast<float>(-0.01 - 0.001 * static_cast<double>(row)) * std::exp(log_probs[t]);
            }
            return Ok{};
        };
        if (CacheScales* cache = trainer->cache_scales(); cache && s != 1) cache->renew_at_update();
        NIBBLE_TRY(const TrainStep step, trainer->step(batches, objective, 0.01));
        seen.losses.push_back(step.loss), seen.norms.push_back(step.gradient_norm);
        seen.asked.push_back(order);
        if (const CacheScales* cache = trainer->cache_scales()) {
            const std::vector<float> state = cache->state();
            seen.scales.insert(seen.scales.end(), state.begin(), state.end());
            seen.values.push_back(cache->last_use().values), seen.values.push_back(cache->last_use().clipped);
        }
        NIBBLE_CHECK(trainer->sync());
    }
    size_t next = 0;
    NIBBLE_CHECK(trainer->row_log_probs(asked, [&](size_t row, std::span<const float> values) -> Status {
        if (row != next++) return fail("row {} came as number {}", row, next - 1);
        seen.log_probs.insert(seen.log_probs.end(), values.begin(), values.end());
        return Ok{};
    }));
    seen.masters = all_masters(trainer->parameters());
    return Ok{};
}

TEST(RankRows, AnObjectiveGivesTheBitsOfOneProcess) {
    const struct {
        std::string name;
        TrainerOptions options;
    } cases[] = {{"bf16", {}},
                 {"fp8_block", {.precision = {.recipe = TrainRecipe::fp8_block}}},
                 {"nvfp4", {.precision = {.recipe = TrainRecipe::nvfp4, .row_scaled = true}}},
                 {"fp8 cache", {.cache = {.format = KvFormat::fp8}}},
                 {"fp8 cache, percentile",
                  {.cache = {.format = KvFormat::fp8, .calibration = {.percentile = 70, .margin = 1.1}}}},
                 {"fp8 pages", {.cache = {.format = KvFormat::fp8_page}}}};
    for (const auto& c : cases)
        for (const int rows : {2, 7}) {
            SCOPED_TRACE(fmt::format("{}, {} rows", c.name, rows));
            ObjectiveSeen want;
            ASSERT_EQ(run_ranks(1, [&](RankGroup* g, int) { return train_objective(g, c.options, rows, want); })[0],
                      "");
            ASSERT_EQ(want.losses.size(), 3u);
            EXPECT_NE(want.losses[0], want.losses[2]);
            for (const int size : {2, 3, 4}) {
                std::vector<ObjectiveSeen> all(static_cast<size_t>(size));
                const auto errors = run_ranks(size, [&](RankGroup* g, int rank) {
                    return train_objective(g, c.options, rows, all[static_cast<size_t>(rank)]);
                });
                for (int r = 0; r < size; ++r) {
                    ASSERT_EQ(errors[r], "") << size << " ranks";
                    EXPECT_TRUE(all[r] == want) << "rank " << r << " of " << size;
                    // The objective is called once for every row, first for the rank's own rows.
                    std::vector<int64_t> asked = all[r].asked[0];
                    std::ranges::sort(asked);
                    EXPECT_EQ(asked, want.asked[0]);
                    if (rows == 7) {
                        EXPECT_EQ(all[r].asked[0] == want.asked[0], r == 0);
                    }
                }
            }
        }
}

// Negative control: if a rank has other rows, the difference appears in every rank.
TEST(RankRows, ChangedRowsAreDetected) {
    const auto last_loss = [](bool other) {
        std::vector<double> losses(2);
        std::mutex one;
        const auto errors = run_ranks(2, [&](RankGroup* g, int rank) -> Status {
            ThreadPool pool(1);
            const auto trainer = small_trainer(pool, {.ranks = g});
            std::vector<TrainBatch> rows = uneven_rows(4);
            if (other && rank == 1)
                for (int32_t& id : rows[3].tokens) id ^= 1;
            NIBBLE_TRY(const TrainStep step,
                       trainer->step(
                           rows,
                           [](int64_t, std::span<const float> p, std::span<float> slopes, double& loss) -> Status {
                               for (const float x : p) loss += double{x};
                               std::ranges::fill(slopes, -0.01f);
                               return Ok{};
                           },
                           0.01));
            const std::scoped_lock lock(one);
            losses[static_cast<size_t>(rank)] = step.loss;
            return Ok{};
        });
        EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
        EXPECT_EQ(losses[0], losses[1]);
        return losses[0];
    };
    EXPECT_NE(last_loss(false), last_loss(true));
}

}  // namespace
}  // namespace nibble::test
