// Products in 8-bit integers: entries against `ref` bit for bit, `ref` against double within the codes' error, threads.
#include "kernels/byte_product.h"

#include "kernels/elementwise.h"

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
    const auto lanes = static_cast<size_t>(a.panels() * a.room * byte_panel);
    const auto equal = [&](const auto& x, const auto& y, size_t count) {
        return std::memcmp(x.data(), y.data(), count * sizeof(x[0])) == 0;
    };
    return a.rows == b.rows && a.cols == b.cols && a.room == b.room && equal(a.words, b.words, lanes * byte_words) &&
           equal(a.sums, b.sums, lanes) && equal(a.scales, b.scales, lanes);
}

// A matrix whose memory held other data, like calibration's buffers.
ByteMatrix used() {
    ByteMatrix m(400, 1000);
    std::memset(m.words.data(), 0x5A, static_cast<size_t>(m.words.size()) * 4);
    std::memset(m.sums.data(), 0x5A, static_cast<size_t>(m.sums.size()) * 4);
    std::memset(m.scales.data(), 0x5A, static_cast<size_t>(m.scales.size()) * 4);
    return m;
}
ByteMatrix rows_of(const ByteKernels& k, const std::vector<float>& x, int64_t rows, int64_t cols, ThreadPool& pool) {
    ByteMatrix m = used();
    byte_rows(k, x.data(), rows, cols, cols, pool, m);
    return m;
}
ByteMatrix columns_of(const ByteKernels& k, const std::vector<float>& x, int64_t rows, int64_t cols, ThreadPool& pool) {
    ByteMatrix m = used();
    byte_columns(k, x.data(), rows, cols, cols, pool, m);
    return m;
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
    for (const auto [m, n, k] : {Shape{1, 1, 1}, Shape{8, 32, 64}, Shape{33, 70, 130}, Shape{300, 95, 800}}) {
        SCOPED_TRACE(fmt::format("{} x {} x {}", m, n, k));
        auto x = draw(m * k, 1);
        const auto w = draw(n * k, 2);
        for (int64_t i = 0; i < std::min<int64_t>(k, 64); ++i) x[static_cast<size_t>(i)] = 0;  // a block of zeros
        const ByteMatrix want_a = rows_of(ref(), x, m, k, one_);
        const ByteMatrix want_b = columns_of(ref(), w, k, n, one_);
        const ByteMatrix a = rows_of(*kernels_, x, m, k, three_);
        const ByteMatrix b = columns_of(*kernels_, w, k, n, three_);
        EXPECT_TRUE(same(a, want_a));
        EXPECT_TRUE(same(b, want_b));
        std::vector<float> want(static_cast<size_t>(m * n)), got = want;
        byte_product(ref(), want_a, want_b, {want.data(), n}, one_);
        byte_product(*kernels_, a, b, {got.data(), n}, three_);
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
    const ByteMatrix a = rows_of(*kernels_, x, m, k, one_), b = rows_of(*kernels_, w, n, k, one_);
    std::vector<float> y(static_cast<size_t>(m * n));
    byte_product(*kernels_, a, b, {y.data(), n}, one_);
    double error = 0, size = 0;
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
            double exact = 0;
            for (int64_t s = 0; s < k; ++s)
                exact += double{x[static_cast<size_t>(i * k + s)]} * double{w[static_cast<size_t>(j * k + s)]};
            error += std::pow(exact - double{y[static_cast<size_t>(i * n + j)]}, 2);
            size += exact * exact;
        }
    EXPECT_LT(std::sqrt(error / size), 0.05);  // outliers of 40 standard deviations in every block
    EXPECT_GT(error, 0);
}

TEST_P(ByteProductTest, GramIsTheUpperTriangleOfTheProduct) {
    const int64_t n = 75, k = 200;
    const auto x = draw(n * k, 5);
    const ByteMatrix a = rows_of(*kernels_, x, n, k, one_);
    std::vector<float> y(static_cast<size_t>(n * n));
    byte_product(*kernels_, a, a, {y.data(), n}, one_);
    std::vector<double> sums(y.size());
    add_byte_gram(*kernels_, a, sums.data(), one_);
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j)
            EXPECT_EQ(sums[static_cast<size_t>(i * n + j)], j < i ? 0.0 : double{y[static_cast<size_t>(i * n + j)]});
}

TEST_P(ByteProductTest, NonFiniteInputsGiveNonFiniteResults) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        auto x = draw(8 * 64, 6);
        x[70] = bad;
        const auto w = draw(32 * 64, 7);
        const ByteMatrix a = rows_of(*kernels_, x, 8, 64, one_);
        const ByteMatrix b = rows_of(*kernels_, w, 32, 64, one_);
        std::vector<float> y(8 * 32);
        byte_product(*kernels_, a, b, {y.data(), 32}, one_);
        for (int i = 0; i < 8; ++i) EXPECT_EQ(std::isfinite(y[static_cast<size_t>(i * 32 + 5)]), i != 1);
    }
}

TEST_P(ByteProductTest, OutputsAreShiftedRoundedAndGatedAsOneAfterTheOther) {
    const ElementwiseKernels& plain = elementwise_kernels().back();
    const int64_t m = 45, n = 128, k = 130;
    const auto x = draw(m * k, 8), w = draw(n * k, 9), bias = draw(n, 10);
    const ByteMatrix a = rows_of(*kernels_, x, m, k, one_), b = rows_of(*kernels_, w, n, k, one_);
    std::vector<float> sums(static_cast<size_t>(m * n));
    byte_product(*kernels_, a, b, {sums.data(), n}, one_);
    for (const float* shift : {static_cast<const float*>(nullptr), bias.data()})
        for (const bool bf16 : {false, true}) {
            std::vector<float> want = sums, got(sums.size());
            for (int64_t i = 0; i < m; ++i) {
                if (shift) plain.add(shift, n, bf16, want.data() + i * n);
                if (bf16) plain.round_bf16(want.data() + i * n, n);
            }
            byte_product(*kernels_, a, b, {got.data(), n, shift, bf16}, three_);
            EXPECT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(float)), 0);
            for (const Activation activation : {Activation::silu, Activation::gelu_tanh, Activation::relu2}) {
                std::vector<float> half(static_cast<size_t>(m * n / 2)), gated = half;
                for (int64_t i = 0; i < m; ++i)
                    plain.activate(activation, want.data() + i * n, want.data() + i * n + n / 2, n / 2, bf16,
                                   half.data() + i * n / 2);
                byte_product(*kernels_, a, b, {gated.data(), n / 2, shift, bf16, activation}, three_);
                EXPECT_EQ(std::memcmp(half.data(), gated.data(), half.size() * sizeof(float)), 0);
            }
        }
}

TEST_P(ByteProductTest, ColumnsComeInPartsTimesAFactor) {
    const int64_t n = 70, tokens = 300;
    const auto x = draw(tokens * n, 11);
    std::vector<float> factor(static_cast<size_t>(tokens)), scaled = x;
    for (int64_t t = 0; t < tokens; ++t) {
        factor[static_cast<size_t>(t)] = static_cast<float>(t % 5) / 3.0f;
        for (int64_t j = 0; j < n; ++j) scaled[static_cast<size_t>(t * n + j)] *= factor[static_cast<size_t>(t)];
    }
    const ByteMatrix want = columns_of(ref(), scaled, tokens, n, one_);
    ByteMatrix got = used();
    got.resize(n, tokens);
    EXPECT_TRUE(append_byte_columns(*kernels_, x.data(), 192, n, factor.data(), three_, got, 0));
    EXPECT_TRUE(append_byte_columns(*kernels_, x.data() + 192 * n, 108, n, factor.data() + 192, one_, got, 192));
    EXPECT_TRUE(same(want, got));
    auto bad = x;
    bad[static_cast<size_t>(200 * n + 3)] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(append_byte_columns(*kernels_, bad.data() + 192 * n, 108, n, nullptr, one_, got, 192));
}

INSTANTIATE_TEST_SUITE_P(Entries, ByteProductTest, ::testing::Range(size_t{0}, byte_kernels().size()),
                         [](const auto& info) { return std::string(byte_kernels()[info.param].name); });

}  // namespace
}  // namespace nibble
