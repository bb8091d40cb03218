// Every entry of solver_kernels() against `ref`, and `ref` against its definition.
#include "kernels/solver.h"

#include "formats/minifloat.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace nibble {
namespace {

const SolverKernels& ref() { return solver_kernels().back(); }

class SolverKernelTest : public ::testing::TestWithParam<size_t> {
protected:
    void SetUp() override {
        kernels_ = &solver_kernels()[GetParam()];
        if (!kernels_->supported()) GTEST_SKIP() << "this CPU has no " << kernels_->name;
    }
    const SolverKernels* kernels_ = nullptr;
    std::mt19937 random_{7};
    std::normal_distribution<float> normal_;

    template <class T>
    std::vector<T> draw(int64_t n) {
        std::vector<T> x(static_cast<size_t>(n));
        for (T& v : x) v = normal_(random_);
        return x;
    }

    template <class T, class Run>
    void compare_updates(Run run) {
        struct Shape {
            int64_t m, n, k;
        };
        for (const auto [m, n, k] : {Shape{1, 1, 1}, Shape{1, 16, 5}, Shape{1, 333, 16}, Shape{3, 70, 16},
                                     Shape{16, 97, 16}, Shape{40, 31, 300}, Shape{131, 151, 257}, Shape{8, 48, 0}})
            for (bool subtract : {false, true}) {
                SCOPED_TRACE(fmt::format("{}x{}x{} {}", m, n, k, subtract));
                const auto a = draw<T>((m + 3) * k), b = draw<T>((n + 5) * k), c = draw<T>(m * (n + 2));
                std::vector<T> want = c, got = c;
                RankUpdate<T> update{m, n, k, a.data(), m + 3, b.data(), n + 5, want.data(), n + 2, subtract};
                run(ref(), update);
                update.c = got.data();
                run(*kernels_, update);
                EXPECT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(T)), 0);
            }
    }
};

TEST_P(SolverKernelTest, RankUpdatesEqualTheReferenceBitForBit) {
    compare_updates<float>([](const SolverKernels& k, const RankUpdate<float>& u) { k.rank_update(u); });
    compare_updates<double>([](const SolverKernels& k, const RankUpdate<double>& u) { k.rank_update_f64(u); });
}

TEST_P(SolverKernelTest, RowsComputedAloneOrTogetherHaveTheSameBits) {
    const int64_t m = 29, n = 101, k = 16;
    const auto a = draw<float>(m * k), b = draw<float>(n * k), c = draw<float>(m * n);
    std::vector<float> together = c, alone = c;
    kernels_->rank_update({m, n, k, a.data(), m, b.data(), n, together.data(), n});
    for (int64_t i = 0; i < m; ++i)
        kernels_->rank_update({1, n, k, a.data() + i, m, b.data(), n, alone.data() + i * n, n});
    EXPECT_EQ(std::memcmp(together.data(), alone.data(), alone.size() * sizeof(float)), 0);
}

TEST_P(SolverKernelTest, BlockSearchesEqualTheReferenceBitForBit) {
    for (int round = 0; round < 2000; ++round) {
        BlockFactor factor{};
        float x[16], scale[16], inverse[16];
        const float size = std::ldexp(1.0f, round % 40 - 20);
        for (int k = 0; k < 16; ++k) {
            // Every fourth round uses grid points and midpoints: exact ties.
            x[k] =
                round % 4 ? normal_(random_) * size : static_cast<float>(static_cast<int>(random_() % 57) - 28) * .25f;
            factor.weight[k] = round % 4 ? std::exp(normal_(random_)) : 1.0f;
            for (int j = k + 1; j < 16; ++j) factor.row[k][j] = round % 3 ? .3f * normal_(random_) : 0.0f;
            scale[k] = round % 4 ? size * (.2f + .05f * static_cast<float>(k)) : std::ldexp(1.0f, k % 3);
            inverse[k] = 1.0f / scale[k];
        }
        if (round == 5) std::fill(x, x + 16, 0.0f);
        BlockChoice want{}, got{};
        ref().search_block(x, factor, scale, inverse, want);
        kernels_->search_block(x, factor, scale, inverse, got);
        ASSERT_EQ(std::memcmp(&want, &got, sizeof want), 0) << round << ": " << want.candidate << " " << got.candidate;
    }
}

TEST_P(SolverKernelTest, WithoutFeedbackABlockIsRoundedToTheNearest) {
    BlockFactor factor{};
    float x[16], scale[16], inverse[16];
    for (int k = 0; k < 16; ++k) {
        x[k] = normal_(random_);
        factor.weight[k] = 1.0f;
        scale[k] = inverse[k] = 0.5f;
    }
    for (int k = 0; k < 16; ++k) inverse[k] = 2.0f;
    x[3] = 100.0f;
    x[4] = -100.0f;
    BlockChoice choice{};
    kernels_->search_block(x, factor, scale, inverse, choice);
    EXPECT_EQ(choice.candidate, 0);  // all equal
    float cost = 0;
    for (int k = 0; k < 16; ++k) {
        EXPECT_EQ(choice.multiple[k], e2m1_to_float(e2m1_from_float(x[k] * 2.0f)));
        EXPECT_EQ(choice.residual[k], x[k] - choice.multiple[k] * 0.5f);
        cost += choice.residual[k] * choice.residual[k];
    }
    EXPECT_FLOAT_EQ(choice.cost, cost);
}

TEST_P(SolverKernelTest, DescentsEqualTheReferenceBitForBitAndNeverClimb) {
    for (int round = 0; round < 20; ++round) {
        const int64_t n = 16 * (1 + round % 9);
        const auto root = draw<float>(n * n), w = draw<float>(n);
        std::vector<float> h(static_cast<size_t>(n * n)), inverse_diagonal, scale, inverse_scale, multiple;
        kernels_->rank_update({n, n, n, root.data(), n, root.data(), n, h.data(), n});
        for (int64_t k = 0; k < n; ++k) {
            inverse_diagonal.push_back(1.0f / h[static_cast<size_t>(k * n + k)]);
            scale.push_back(.2f + .01f * static_cast<float>(k % 16));
            inverse_scale.push_back(1.0f / scale.back());
            multiple.push_back(e2m1_to_float(e2m1_from_float(w[static_cast<size_t>(k)] / scale.back())) + 0.0f);
        }
        std::vector<float> y(static_cast<size_t>(n)), other(static_cast<size_t>(n));
        const auto loss = [&](const std::vector<float>& codes) {
            double sum = 0;
            for (size_t i = 0; i < codes.size(); ++i)
                for (size_t j = 0; j < codes.size(); ++j)
                    sum += double{w[i] - codes[i] * scale[i]} * double{h[i * codes.size() + j]} *
                           double{w[j] - codes[j] * scale[j]};
            return sum;
        };
        for (size_t j = 0; j < y.size(); ++j)
            for (size_t i = 0; i < y.size(); ++i) y[j] += (w[i] - multiple[i] * scale[i]) * h[i * y.size() + j];
        auto y2 = y, m2 = multiple;
        double before = loss(multiple);
        for (int sweep = 0; sweep < 4; ++sweep) {
            RowDescent row{n,
                           h.data(),
                           inverse_diagonal.data(),
                           scale.data(),
                           inverse_scale.data(),
                           other.data(),
                           multiple.data(),
                           y.data()};
            const int64_t changed = kernels_->descend_row(row);
            row.multiple = m2.data(), row.y = y2.data();
            EXPECT_EQ(changed, ref().descend_row(row));
            ASSERT_EQ(std::memcmp(multiple.data(), m2.data(), m2.size() * 4), 0);
            ASSERT_EQ(std::memcmp(y.data(), y2.data(), y2.size() * 4), 0);
            const double after = loss(multiple);
            EXPECT_LE(after, before * (1 + 1e-5));
            if (round > 2 && sweep == 0) {
                EXPECT_LT(after, before) << "rounding to the nearest leaves something to do";
            }
            before = after;
        }
    }
}

TEST_P(SolverKernelTest, BlockLossesEqualTheReferenceBitForBit) {
    for (int round = 0; round < 1000; ++round) {
        const auto h = draw<float>(256);
        float x[16], scale[16], want[16], got[16];
        for (int k = 0; k < 16; ++k) {
            x[k] = round % 4 ? normal_(random_) : static_cast<float>(static_cast<int>(random_() % 57) - 28) * .25f;
            scale[k] = round % 4 ? .1f + .05f * static_cast<float>(k) : std::ldexp(1.0f, k % 3 - 1);
        }
        scale[round % 16] = 0.0f;
        ref().block_losses(x, h.data(), scale, want);
        kernels_->block_losses(x, h.data(), scale, got);
        ASSERT_EQ(std::memcmp(want, got, sizeof want), 0) << round;
    }
}

INSTANTIATE_TEST_SUITE_P(Entries, SolverKernelTest, ::testing::Range(size_t{0}, solver_kernels().size()),
                         [](const auto& info) { return std::string(solver_kernels()[info.param].name); });

TEST(SolverKernels, AnUnknownNameListsTheChoices) {
    const auto none = select_solver_kernels("sse9");
    ASSERT_FALSE(none.ok());
    EXPECT_NE(none.error().message().find("ref"), std::string::npos);
}

}  // namespace
}  // namespace nibble
