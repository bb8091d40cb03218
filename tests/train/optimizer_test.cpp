// Sums of gradients, AdamW, clipping and schedules, each beside the formula written out.
#include "train/small_trainer.h"

#include "train/schedule.h"

#include <cmath>

namespace nibble::test {
namespace {

TEST(GradientTree, IsABinaryCounterOverRows) {
    ThreadPool pool(2);
    const auto parameters = small_parameters(pool, DType::f32);
    GradientTree tree(*parameters, "model.embed_tokens.weight", false, pool);
    const auto id = *parameters->id("model.norm.weight");
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    for (const int rows : {1, 2, 3, 7, 8, 13}) {
        std::vector<std::vector<float>> all;
        tree.begin_step();
        for (int r = 0; r < rows; ++r) {
            std::vector<float> g(32);
            for (float& x : g) x = normal(random);
            ASSERT_TRUE(tree.add("model.norm.weight", g.data(), 32, 1).ok());
            tree.end_row();
            all.push_back(g);
        }
        tree.end_step();
        EXPECT_EQ(tree.rows(), rows);
        for (size_t j = 0; j < 32; ++j) {
            // Neighbours of equal size from the left; what is over waits and is added from the right.
            std::vector<std::pair<float, int>> sums;
            for (const auto& g : all) {
                sums.emplace_back(g[j], 1);
                while (sums.size() > 1 && sums[sums.size() - 2].second == sums.back().second) {
                    const auto last = sums.back();
                    sums.pop_back();
                    sums.back() = {sums.back().first + last.first, 2 * last.second};
                }
            }
            float total = sums.back().first;
            for (size_t i = sums.size() - 1; i-- > 0;) total = sums[i].first + total;
            EXPECT_EQ(tree.gradient(id)[j], total) << rows << " rows";
        }
        double squares = 0;
        for (const float x : tree.gradient(id)) squares += double{x} * x;
        EXPECT_NEAR(tree.norm(), std::sqrt(squares), 1e-12 * std::sqrt(squares));
    }
    tree.begin_step();
    tree.end_row();
    tree.end_step();
    EXPECT_TRUE(tree.gradient(id).empty());
}

TEST(GradientTree, EmbeddingRowsAreThoseOfADenseTree) {
    ThreadPool pool(2);
    const auto parameters = small_parameters(pool, DType::f32);
    const auto id = *parameters->id("model.embed_tokens.weight");
    GradientTree sparse(*parameters, "model.embed_tokens.weight", false, pool), dense(*parameters, "", false, pool);
    std::mt19937 random(4);
    std::normal_distribution<float> normal;
    for (int r = 0; r < 6; ++r) {
        std::vector<int32_t> ids;
        std::vector<float> g, all(48 * 32);
        for (int t = 0; t < 11; ++t) {
            ids.push_back(static_cast<int32_t>(random() % 48));
            for (int j = 0; j < 32; ++j) {
                g.push_back(normal(random));
                all[static_cast<size_t>(ids.back() * 32 + j)] += 2.0f * g.back();
            }
        }
        ASSERT_TRUE(sparse.add_rows("model.embed_tokens.weight", ids, g.data(), 32, 2.0f).ok());
        ASSERT_TRUE(dense.add("model.embed_tokens.weight", all.data(), 48, 32).ok());
        sparse.end_row();
        dense.end_row();
    }
    sparse.end_step();
    dense.end_step();
    for (size_t i = 0; i < 48 * 32; ++i) EXPECT_EQ(sparse.gradient(id)[i], dense.gradient(id)[i]);
    EXPECT_FALSE(sparse.add_rows("model.embed_tokens.weight", {}, nullptr, 31, 1.0f).ok());
    EXPECT_FALSE(sparse.add("model.norm.weight", nullptr, 31, 1).ok());
    EXPECT_FALSE(sparse.add("nothing", nullptr, 31, 1).ok());
}

TEST(Schedule, FollowsItsFormula) {
    const double peak = 2e-3;
    TrainSchedule s{.kind = ScheduleKind::cosine, .warmup = 10, .decay_fraction = 0.25, .final_fraction = 0.1};
    EXPECT_DOUBLE_EQ(learning_rate(s, peak, 0, 110), peak / 10);
    EXPECT_DOUBLE_EQ(learning_rate(s, peak, 9, 110), peak);
    EXPECT_DOUBLE_EQ(learning_rate(s, peak, 10, 110), peak);
    EXPECT_NEAR(learning_rate(s, peak, 60, 110), peak * 0.55, 1e-15);
    EXPECT_NEAR(learning_rate(s, peak, 110, 110), peak * 0.1, 1e-15);
    s.kind = ScheduleKind::linear;
    EXPECT_NEAR(learning_rate(s, peak, 35, 110), peak * (0.1 + 0.9 * 0.75), 1e-15);
    s.kind = ScheduleKind::constant;
    EXPECT_DOUBLE_EQ(learning_rate(s, peak, 109, 110), peak);
    s.kind = ScheduleKind::wsd;
    EXPECT_DOUBLE_EQ(learning_rate(s, peak, 74, 100), peak);
    EXPECT_DOUBLE_EQ(learning_rate(s, peak, 75, 100), peak);
    EXPECT_NEAR(learning_rate(s, peak, 84, 100), peak * (0.1 + 0.9 * (1 - 0.6)), 1e-15);
    s.warmup = 0;
    for (const ScheduleKind kind : {ScheduleKind::cosine, ScheduleKind::wsd, ScheduleKind::linear}) {
        s.kind = kind;
        double before = peak;
        for (int64_t step = 0; step < 50; ++step) {
            const double now = learning_rate(s, peak, step, 50);
            EXPECT_LE(now, before);
            EXPECT_GE(now, peak * 0.1);
            before = now;
        }
    }
}

TEST(Schedule, ClippingKeepsTheDirectionAndTheLength) {
    EXPECT_EQ(clip_factor(5.0, 0.0), 1.0f);
    EXPECT_EQ(clip_factor(0.5, 1.0), 1.0f);
    EXPECT_EQ(clip_factor(4.0, 1.0), 0.25f);
}

}  // namespace
}  // namespace nibble::test
