#include "quant/awq.h"

#include "formats/minifloat.h"
#include "support/best_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

namespace nibble {
namespace {

constexpr int64_t n = 48, k = 64, rows = 200;

struct Case {
    Matrix weight{DType::bf16, n, k};
    std::vector<float> x = std::vector<float>(rows * k), mean = std::vector<float>(k);

    // Channel 3 of the inputs is `loud` times as large as the others.
    explicit Case(float loud) {
        std::mt19937 random(3);
        std::normal_distribution<float> normal;
        for (int64_t i = 0; i < n * k; ++i) {
            const uint16_t code = bf16_from_float(0.05f * normal(random));
            std::memcpy(weight.data.data() + 2 * i, &code, 2);
        }
        for (size_t i = 0; i < x.size(); ++i) x[i] = normal(random) * (i % k == 3 ? loud : 1.0f);
        for (size_t i = 0; i < x.size(); ++i) mean[i % k] += std::abs(x[i]) / rows;
    }
    Result<AwqScales> run(bool quantized = false, int threads = 1) const {
        ThreadPool pool(threads);
        const AwqWeights weights{1, [&](size_t) { return Result<MatrixView>(weight.view()); }};
        return awq_lite(weights, {mean, x.data(), rows, quantized, {}, false}, {Format::nvfp4}, 0.1f,
                        test::best_quantize(), test::best_solver(), pool);
    }
};

TEST(AwqLite, ScalingALargeChannelLowersTheErrorOfTheOutput) {
    for (bool quantized : {false, true}) {
        const auto found = Case(30).run(quantized);
        ASSERT_TRUE(found.ok()) << found.error().message();
        ASSERT_EQ(found->loss.size(), 11u);
        EXPECT_GT(found->alpha, 0.0f);
        EXPECT_EQ(*std::min_element(found->loss.begin(), found->loss.end()),
                  found->loss[static_cast<size_t>(std::lround(found->alpha * 10))]);
        if (!quantized) {
            EXPECT_LT(found->loss[static_cast<size_t>(std::lround(found->alpha * 10))], 0.5 * found->loss[0]);
        }
        EXPECT_EQ(std::max_element(found->scale.begin(), found->scale.end()) - found->scale.begin(), 3);
    }
}

TEST(AwqLite, ScalesFollowTheFormula) {
    const Case c(8);
    const auto found = c.run();
    ASSERT_TRUE(found.ok());
    std::vector<double> s(k);
    for (int64_t j = 0; j < k; ++j) {
        double v = 0;
        for (int64_t r = 0; r < n; ++r) {
            const auto at = [&](int64_t col) {
                uint16_t code;
                std::memcpy(&code, c.weight.data.data() + 2 * (r * k + col), 2);
                return std::abs(double{bf16_to_float(code)});
            };
            double amax = 0;
            for (int64_t i = j / 16 * 16; i < j / 16 * 16 + 16; ++i) amax = std::max(amax, at(i));
            v += at(j) / amax / n;
        }
        s[static_cast<size_t>(j)] = std::pow(double{c.mean[static_cast<size_t>(j)]}, double{found->alpha}) /
                                    std::pow(v, 1 - double{found->alpha});
    }
    const double middle = std::sqrt(*std::max_element(s.begin(), s.end()) * *std::min_element(s.begin(), s.end()));
    for (size_t j = 0; j < s.size(); ++j) EXPECT_NEAR(found->scale[j], s[j] / middle, 1e-5 * s[j] / middle);
}

// A weight in two parts that share the input; half of the columns are tied in pairs, and scales are powers of two.
TEST(AwqLite, TiesPowersOfTwoAndSeveralPartsFollowTheDefinition) {
    const Case c(8);
    std::vector<int32_t> classes;
    for (int32_t i = 0; i < k; ++i) classes.push_back(i < k / 2 ? i / 2 : i);
    ThreadPool pool(1);
    const AwqWeights parts{
        2, [&](size_t i) { return Result<MatrixView>(c.weight.view().panel(i == 0 ? 0 : 16, i == 0 ? 16 : n - 16)); }};
    for (const bool powers : {false, true}) {
        const auto found = awq_lite(parts, {c.mean, c.x.data(), rows, false, classes, powers}, {Format::nvfp4}, 0.1f,
                                    test::best_quantize(), test::best_solver(), pool);
        ASSERT_TRUE(found.ok()) << found.error().message();
        EXPECT_LT(*std::min_element(found->loss.begin(), found->loss.end()), found->unscaled);
        for (size_t i = 0; i < k / 2; i += 2) EXPECT_EQ(found->scale[i], found->scale[i + 1]);
        int exponent;
        for (const float s : found->scale) EXPECT_EQ(std::frexp(s, &exponent) == 0.5f, powers || s == 1.0f) << s;
    }
}

TEST(AwqLite, ThreadsDoNotChangeBits) {
    const Case c(8);
    const auto one = c.run(true, 1), three = c.run(true, 3);
    EXPECT_EQ(one->loss, three->loss);
    EXPECT_EQ(one->scale, three->scale);
}

TEST(AwqLite, ZeroInputsAreAnError) {
    Case c(1);
    std::fill(c.mean.begin(), c.mean.end(), 0.0f);
    const auto found = c.run();
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.error().message(), "all inputs are zero: awq_lite has no data for its search");
}

}  // namespace
}  // namespace nibble
