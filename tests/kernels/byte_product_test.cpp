// Products in 8-bit integers: entries against `ref` bit for bit, `ref` against double within the codes' error, threads.
#include "kernels/byte_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace nibble {
namespace {

const ByteKernels& ref() { return byte_kernels().back(); }

std::vector<float> draw(int64_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(n));
    for (size_t i = 0; i < x.size(); ++i) x[i] = normal(random) * (i % 97 == 0 ? 40.0f : 1.0f);
    return x;
}

bool same(const ByteMatrix& a, const ByteMatrix& b) {
    return a.words == b.words && a.sums == b.sums &&
           std::memcmp(a.scales.data(), b.scales.data(), a.scales.size() * sizeof(float)) == 0;
}

class ByteProductTest : public ::testing::TestWithParam<size_t> {
protected:
    void SetUp() override {
        kernels_ = &byte_kernels()[GetParam()];
        if (!kernels_->supported()) GTEST_SKIP() << "this CPU has no " << kernels_->name;
    }
    const ByteKernels* kernels_ = nullptr;
    ThreadPool one_{1}, three_{3};
};

TEST_P(ByteProductTest, EqualsTheReferenceBitForBitOnAnyThreads) {
    struct Shape {
        int64_t m, n, k;
    };
    for (const auto [m, n, k] : {Shape{1, 1, 1}, Shape{8, 32, 64}, Shape{33, 70, 130}, Shape{300, 95, 576}}) {
        SCOPED_TRACE(fmt::format("{} x {} x {}", m, n, k));
        auto x = draw(m * k, 1);
        const auto w = draw(n * k, 2);
        for (int64_t i = 0; i < std::min<int64_t>(k, 64); ++i) x[static_cast<size_t>(i)] = 0;  // a block of zeros
        const ByteMatrix want_a = byte_rows(ref(), x.data(), m, k, k, one_);
        const ByteMatrix want_b = byte_columns(ref(), w.data(), k, n, n, one_);
        const ByteMatrix a = byte_rows(*kernels_, x.data(), m, k, k, three_);
        const ByteMatrix b = byte_columns(*kernels_, w.data(), k, n, n, three_);
        EXPECT_TRUE(same(a, want_a));
        EXPECT_TRUE(same(b, want_b));
        std::vector<float> want(static_cast<size_t>(m * n)), got = want;
        byte_product(ref(), want_a, want_b, want.data(), n, one_);
        byte_product(*kernels_, a, b, got.data(), n, three_);
        EXPECT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(float)), 0);
        std::vector<double> want_gram(static_cast<size_t>(m * m), 0.5), gram = want_gram;
        add_byte_gram(ref(), want_a, want_gram.data(), one_);
        add_byte_gram(*kernels_, a, gram.data(), three_);
        EXPECT_EQ(want_gram, gram);
    }
}

TEST_P(ByteProductTest, IsWithinTheErrorOfItsCodes) {
    const int64_t m = 40, n = 50, k = 640;
    const auto x = draw(m * k, 3), w = draw(n * k, 4);
    const ByteMatrix a = byte_rows(*kernels_, x.data(), m, k, k, one_),
                     b = byte_rows(*kernels_, w.data(), n, k, k, one_);
    std::vector<float> y(static_cast<size_t>(m * n));
    byte_product(*kernels_, a, b, y.data(), n, one_);
    double error = 0, size = 0;
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
            double exact = 0;
            for (int64_t s = 0; s < k; ++s)
                exact += double{x[static_cast<size_t>(i * k + s)]} * double{w[static_cast<size_t>(j * k + s)]};
            error += std::pow(exact - double{y[static_cast<size_t>(i * n + j)]}, 2);
            size += exact * exact;
        }
    EXPECT_LT(std::sqrt(error / size), 0.03);  // outliers of 40 standard deviations
    EXPECT_GT(error, 0);
}

TEST_P(ByteProductTest, GramIsTheUpperTriangleOfTheProduct) {
    const int64_t n = 75, k = 200;
    const auto x = draw(n * k, 5);
    const ByteMatrix a = byte_rows(*kernels_, x.data(), n, k, k, one_);
    std::vector<float> y(static_cast<size_t>(n * n));
    byte_product(*kernels_, a, a, y.data(), n, one_);
    std::vector<double> sums(y.size());
    add_byte_gram(*kernels_, a, sums.data(), one_);
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j)
            EXPECT_EQ(sums[static_cast<size_t>(i * n + j)], j < i ? 0.0 : double{y[static_cast<size_t>(i * n + j)]});
}

TEST_P(ByteProductTest, WhatIsNotFiniteShowsInTheResult) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        auto x = draw(8 * 64, 6);
        x[70] = bad;
        const auto w = draw(32 * 64, 7);
        const ByteMatrix a = byte_rows(*kernels_, x.data(), 8, 64, 64, one_);
        const ByteMatrix b = byte_rows(*kernels_, w.data(), 32, 64, 64, one_);
        std::vector<float> y(8 * 32);
        byte_product(*kernels_, a, b, y.data(), 32, one_);
        for (int i = 0; i < 8; ++i) EXPECT_EQ(std::isfinite(y[static_cast<size_t>(i * 32 + 5)]), i != 1);
    }
}

INSTANTIATE_TEST_SUITE_P(Entries, ByteProductTest, ::testing::Range(size_t{0}, byte_kernels().size()),
                         [](const auto& info) { return std::string(byte_kernels()[info.param].name); });

}  // namespace
}  // namespace nibble
