// Tests sums of gradients, AdamW, clipping and schedules against formulas written out.
#include "train/small_trainer.h"

#include "formats/minifloat.h"
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
        ASSERT_TRUE(tree.end_step().ok());
        for (size_t j = 0; j < 32; ++j) {
            // Adjacent sums of equal size are added from the left; the remaining ones are added from the right at the
            // end.
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
        EXPECT_NEAR(*tree.norm(), std::sqrt(squares), 1e-12 * std::sqrt(squares));
    }
    tree.begin_step();
    tree.end_row();
    ASSERT_TRUE(tree.end_step().ok());
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
    ASSERT_TRUE(sparse.end_step().ok());
    ASSERT_TRUE(dense.end_step().ok());
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

// For a diagonal matrix the iteration applies the polynomial to each number.
TEST(Muon, OrthogonalizingADiagonalIsThePolynomial) {
    ThreadPool pool(2);
    const MatmulKernels& matmul = **select_matmul_kernels();
    const std::vector<double> diagonal{3, -2, 1.5, 0.75, 0.25, 1, 2.5, -0.5, 0.125, 4};
    for (const auto& [rows, cols] : {std::pair{10, 10}, {10, 37}, {70, 10}}) {
        std::vector<float> u(size_t(rows * cols));
        double squares = 0;
        for (size_t i = 0; i < 10; ++i) {
            u[i * size_t(cols) + i] = float(diagonal[i]);
            squares += diagonal[i] * diagonal[i];
        }
        orthogonalize(u, rows, cols, matmul, pool);
        for (size_t i = 0; i < size_t(rows); ++i)
            for (size_t j = 0; j < size_t(cols); ++j) {
                double x = i == j ? diagonal[i] / std::sqrt(squares) : 0;
                for (int round = 0; round < 5; ++round)
                    x = 3.4445 * x - 4.7750 * x * x * x + 2.0315 * x * x * x * x * x;
                EXPECT_NEAR(u[i * size_t(cols) + j], x, 1e-4) << i << " " << j;
                if (i == j && std::abs(diagonal[i]) >= 0.25) {
                    EXPECT_NEAR(std::abs(x), 0.95, 0.3) << i;
                }
            }
    }
    std::vector<float> none(12);
    orthogonalize(none, 3, 4, matmul, pool);
    EXPECT_EQ(none, std::vector<float>(12));
}

TEST(Optimizers, DoNotDependOnThreads) {
    for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::muon}) {
        std::vector<std::vector<float>> masters;
        for (const int threads : {1, 3}) {
            ThreadPool pool(threads);
            TrainerOptions options;
            options.optimizer.kind = kind;
            options.optimizer.bf16_states = true;
            const auto trainer = small_trainer(pool, options);
            for (uint32_t i = 0; i < 4; ++i) {
                const TrainBatch batch = random_batch(2, 16, 48, i);
                ASSERT_TRUE(trainer->step({&batch, 1}, 0.01).ok());
            }
            masters.push_back(all_masters(trainer->parameters()));
        }
        EXPECT_EQ(masters[0], masters[1]);
    }
}

// v changes by less than half a BF16 step: round-to-nearest would keep it at 1/4, stochastic rounding does not.
TEST(Optimizers, StatesInBf16AreRoundedWithoutBias) {
    ThreadPool pool(2);
    const auto parameters = small_parameters(pool, DType::f32);
    const std::string name = "model.layers.0.mlp.down_proj.weight";
    const size_t id = *parameters->id(name);
    const std::vector<float> ones(parameters->master(id).size(), 1.0f);
    const auto& shape = parameters->tensors()[id].shape;
    GradientTree tree(*parameters, "model.embed_tokens.weight", false, pool);
    tree.begin_step();
    ASSERT_TRUE(tree.add(name, ones.data(), shape[0], shape[1]).ok());
    tree.end_row();
    ASSERT_TRUE(tree.end_step().ok());
    const TrainOptimizer options{.bf16_states = true, .beta2 = 0.999};
    Optimizer a(*parameters, options, {}, **select_matmul_kernels(), 1),
        b(*parameters, options, {}, **select_matmul_kernels(), 2);
    for (int t = 0; t < 1500; ++t) {
        a.update(*parameters, tree, 1e-4, 1, pool);
        b.update(*parameters, tree, 1e-4, 1, pool);
    }
    double m = 0, v = 0;
    for (const uint16_t x : std::get<1>(a.m(id))) m += bf16_to_float(x);
    for (const uint16_t x : std::get<1>(a.v(id))) v += bf16_to_float(x);
    const auto n = double(ones.size());
    EXPECT_NEAR(m / n, 1, 2e-3);
    EXPECT_NEAR(v / n, 1 - std::pow(0.999, 1500), 5e-3);
    EXPECT_NE(std::get<1>(a.v(id)), std::get<1>(b.v(id))) << "seeds differ";
}

TEST(NormHistory, AnOutlierIsAboveTheMedianOfAFullWindow) {
    NormHistory h(3, 4);
    for (const double norm : {1.0, 100.0, 2.0, 3.0}) EXPECT_FALSE(h.add(norm)) << norm;
    EXPECT_FALSE(h.add(7.5));  // the median of 1, 100, 2, 3 is 2.5
    EXPECT_TRUE(h.add(18));    // the median of 100, 2, 3, 7.5 is 5.25
    EXPECT_EQ(h.norms(), (std::vector<double>{2, 3, 7.5, 18}));
    EXPECT_TRUE(h.add(18));   // the median is 5.25
    EXPECT_FALSE(h.add(18));  // the median of 3, 7.5, 18, 18 is 12.75
    NormHistory none(0, 4);
    for (const double norm : {1.0, 1.0, 1.0, 1.0, 1e9}) EXPECT_FALSE(none.add(norm));
    EXPECT_FALSE(none.set_norms({1}));
    EXPECT_TRUE(h.set_norms({1, 2}));
    EXPECT_FALSE(h.set_norms({1, 2, 3, 4, 5}));
}

TEST(Optimizers, AnOutlierChangesNothing) {
    ThreadPool pool(2);
    TrainerOptions options;
    options.optimizer.skip_above = 20;
    options.optimizer.skip_window = 3;
    const auto trainer = small_trainer(pool, options);
    trainer->begin(0, 5);
    const TrainBatch batch = random_batch(2, 16, 48, 1);
    const auto scaled = [&](double by) {
        return [by](int64_t, std::span<const float> log_probs, std::span<float> slopes, double& loss) -> Status {
            for (size_t i = 0; i < slopes.size(); ++i)
                if (log_probs[i] != 0) slopes[i] = float(-by), loss -= by * double{log_probs[i]};
            return Ok{};
        };
    };
    for (int i = 0; i < 3; ++i) EXPECT_FALSE(trainer->step({&batch, 1}, scaled(1e-2), 1e-3)->skipped);
    const std::vector<float> before = all_masters(trainer->parameters());
    const auto outlier = trainer->step({&batch, 1}, scaled(1), 1e-3);
    ASSERT_TRUE(outlier.ok());
    EXPECT_TRUE(outlier->skipped && outlier->outlier);
    EXPECT_EQ(all_masters(trainer->parameters()), before);
    EXPECT_EQ(trainer->optimizer().steps(), 3);
    const auto next = trainer->step({&batch, 1}, scaled(1e-2), 1e-3);
    EXPECT_FALSE(next->skipped || next->outlier);
    EXPECT_NE(all_masters(trainer->parameters()), before);
}

TEST(Schedule, ClippingKeepsTheDirectionAndTheLength) {
    EXPECT_EQ(clip_factor(5.0, 0.0), 1.0f);
    EXPECT_EQ(clip_factor(0.5, 1.0), 1.0f);
    EXPECT_EQ(clip_factor(4.0, 1.0), 0.25f);
}

}  // namespace
}  // namespace nibble::test
