#include "quant/nibble_best.h"

#include "formats/minifloat.h"
#include "formats/nvfp4.h"
#include "io/safetensors.h"
#include "quant/cholesky.h"
#include "quant/gptq.h"
#include "support/best_kernels.h"
#include "support/files.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

namespace nibble {
namespace {

std::vector<float> correlated_rows(int64_t rows, int64_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(rows * n)), mixing(static_cast<size_t>(8 * n));
    for (float& m : mixing) m = normal(random);
    for (int64_t t = 0; t < rows; ++t) {
        float z[8];
        for (float& v : z) v = normal(random);
        for (int64_t j = 0; j < n; ++j) {
            float v = 0.5f * normal(random);
            for (int64_t l = 0; l < 8; ++l)
                v += z[l] * mixing[static_cast<size_t>(l * n + j)] / static_cast<float>(l + 1);
            x[static_cast<size_t>(t * n + j)] = v * (j % 7 == 0 ? 4.0f : 1.0f);
        }
    }
    return x;
}

Gram gram_of(const std::vector<float>& x, int64_t n, const SolverKernels& kernels = test::best_solver(),
             int threads = 1) {
    ThreadPool pool(threads);
    Gram gram(n, kernels);
    EXPECT_TRUE(gram.add(x.data(), static_cast<int64_t>(x.size()) / n, n, {}, pool).ok());
    gram.finish(pool);
    return gram;
}

Matrix random_weight(int64_t rows, int64_t cols, uint32_t seed = 5) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, 0.05f);
    Matrix w(DType::bf16, rows, cols);
    for (int64_t i = 0; i < rows * cols; ++i) {
        const uint16_t code = bf16_from_float(normal(random));
        std::memcpy(w.data.data() + 2 * i, &code, 2);
    }
    return w;
}

QuantMatrix blank(const Matrix& w) {
    QuantMatrix q(Format::nvfp4, w.rows, w.cols);
    q.tensor_scale = nvfp4_tensor_scale(test::best_quantize().scan(w.view()).amax, 448, Arithmetic::true_division);
    return q;
}

QuantMatrix by_maximum(const Matrix& w) {
    const float g = test::best_quantize().scan(w.view()).amax;
    QuantMatrix q = blank(w);
    QuantStats stats;
    test::best_quantize().quantize(w.view(), {Format::nvfp4, false, 448, {}, Arithmetic::true_division}, {g, g},
                                   q.span(), stats);
    return q;
}

QuantMatrix solved(const Matrix& w, const Gram& h, const Gram* g, const NibbleBestOptions& options = {},
                   const SolverKernels& kernels = test::best_solver(), int threads = 1) {
    ThreadPool pool(threads);
    QuantMatrix q = blank(w);
    const auto stats = nibble_best(w.view(), w.dtype, h, g, options, kernels, pool, q.span());
    EXPECT_TRUE(stats.ok()) << stats.error().message();
    return q;
}

bool same(const QuantMatrix& a, const QuantMatrix& b) { return a.codes == b.codes && a.block_scales == b.block_scales; }

std::vector<double> errors(const Matrix& w, const QuantMatrix& q) {
    std::vector<float> decoded(static_cast<size_t>(w.rows * w.cols));
    test::best_quantize().decode(q.view(), decoded.data());
    std::vector<double> e(decoded.size());
    for (size_t i = 0; i < e.size(); ++i) {
        uint16_t code;
        std::memcpy(&code, w.data.data() + 2 * i, 2);
        e[i] = double{bf16_to_float(code)} - double{decoded[i]};
    }
    return e;
}

// Returns tr(G E H E^T); a null G stands for the identity.
double curvature(const Matrix& w, const QuantMatrix& q, const Gram& h, const Gram* g) {
    const auto e = errors(w, q);
    const auto n = static_cast<size_t>(w.rows), k = static_cast<size_t>(w.cols);
    std::vector<double> eh(n * k);
    for (size_t i = 0; i < n; ++i)
        for (size_t j = 0; j < k; ++j)
            for (size_t l = 0; l < k; ++l) eh[i * k + j] += e[i * k + l] * h.sums()[l * k + j];
    double sum = 0;
    for (size_t i = 0; i < n; ++i)
        for (size_t r = 0; r < n; ++r) {
            const double weight = g ? g->sums()[i * n + r] : i == r ? 1.0 : 0.0;
            if (weight == 0) continue;
            for (size_t j = 0; j < k; ++j) sum += weight * eh[i * k + j] * e[r * k + j];
        }
    return sum;
}

TEST(InverseFactor, TimesItsTransposeIsTheInverse) {
    ThreadPool pool(2);
    for (const int64_t n : {1, 2, 17, 96, 97, 250}) {
        const Gram h = gram_of(correlated_rows(3 * n + 5, n, 3), n);
        for (const SolverKernels& kernels : solver_kernels()) {
            if (!kernels.supported()) continue;
            const auto u = inverse_factor(h.sums(), n, kernels, pool);
            ASSERT_TRUE(u.ok());
            // Checks U H U^T = I.
            const auto at = [n](std::span<const double> m, int64_t i, int64_t j) {
                return m[static_cast<size_t>(i * n + j)];
            };
            std::vector<double> uh(static_cast<size_t>(n * n));
            for (int64_t i = 0; i < n; ++i)
                for (int64_t l = i; l < n; ++l)
                    for (int64_t j = 0; j < n; ++j)
                        uh[static_cast<size_t>(i * n + j)] += at(*u, i, l) * at(h.sums(), l, j);
            double worst = 0;
            for (int64_t i = 0; i < n; ++i)
                for (int64_t j = 0; j < n; ++j) {
                    double sum = i == j ? -1.0 : 0.0;
                    for (int64_t l = j; l < n; ++l) sum += at(uh, i, l) * at(*u, j, l);
                    worst = std::max(worst, std::abs(sum));
                    if (j < i) {
                        EXPECT_EQ(at(*u, i, j), 0.0);
                    }
                }
            EXPECT_LT(worst, 1e-9) << n;
        }
    }
}

TEST(InverseFactor, HasTheSameBitsOnEveryEntryAndForAnyThreadCount) {
    const int64_t n = 333;
    const Gram h = gram_of(correlated_rows(900, n, 3), n);
    ThreadPool one(1);
    const auto want = inverse_factor(h.sums(), n, solver_kernels().back(), one);
    for (const SolverKernels& kernels : solver_kernels())
        for (int threads : {1, 3}) {
            if (!kernels.supported()) continue;
            ThreadPool pool(threads);
            const auto got = inverse_factor(h.sums(), n, kernels, pool);
            EXPECT_EQ(std::memcmp(want->data(), got->data(), want->size() * 8), 0) << kernels.name << threads;
        }
}

TEST(InverseFactor, AMatrixThatIsNotPositiveDefiniteIsAnErrorNamingTheRow) {
    ThreadPool pool(1);
    const std::vector<double> h{1, 2, 2, 1};
    const auto u = inverse_factor(h, 2, solver_kernels().back(), pool);
    ASSERT_FALSE(u.ok());
    EXPECT_EQ(u.error().message(), "the matrix is not positive definite at row 0 of 2; more damping is needed");
}

// 1 and the adjacent FP64 number: singular in FP32 but not in FP64.
TEST(Feedback, AMatrixBeyondFp32IsFactoredInFp64) {
    ThreadPool pool(1);
    const double near = 1.0 - 1e-12;
    const Gram gram = Gram::of(std::vector<double>{1, near, near, 1}, 2, 2, 2);
    const Feedback f = make_feedback(gram, {}, solver_kernels().back(), pool);
    EXPECT_TRUE(f.answers);
    EXPECT_NEAR(f.spread[1], -near, 1e-6);  // x_1 compensates the error of x_0 with its opposite
    EXPECT_NEAR(f.weight[0] / std::sqrt(1 - near * near), 1.0, 1e-3);
}

TEST(Feedback, AMatrixThatIsNotPositiveDefiniteIsReplacedByItsDiagonal) {
    ThreadPool pool(1);
    const Gram worse = Gram::of(std::vector<double>{4, 9, 9, 4}, 2, 2, 2);
    const Feedback f = make_feedback(worse, {}, solver_kernels().back(), pool);
    EXPECT_FALSE(f.answers);
    EXPECT_EQ(f.weight, (std::vector<float>{2, 2}));
    EXPECT_EQ(f.spread, std::vector<float>(4, 0.0f));
}

TEST(Feedback, HasTheSameBitsOnEveryEntryAndForAnyThreadCount) {
    const int64_t n = 333;
    const Gram h = gram_of(correlated_rows(900, n, 3), n);
    ThreadPool one(1), three(3);
    const auto want = make_feedback(h, {0.03, 16}, solver_kernels().back(), one);
    for (const SolverKernels& kernels : solver_kernels()) {
        if (!kernels.supported()) continue;
        const auto got = make_feedback(h, {0.03, 16}, kernels, three);
        EXPECT_EQ(got.order, want.order);
        EXPECT_EQ(std::memcmp(got.spread.data(), want.spread.data(), want.spread.size() * 4), 0) << kernels.name;
        EXPECT_EQ(got.weight, want.weight);
    }
}

TEST(Gram, IsTheSameForAnySplitThreadCountAndEntry) {
    const int64_t n = 130, rows = 1300;
    const auto x = correlated_rows(rows, n, 9);
    std::vector<float> weights(rows);
    for (size_t t = 0; t < weights.size(); ++t) weights[t] = static_cast<float>(t % 13);
    std::vector<double> want;
    for (const SolverKernels& kernels : solver_kernels()) {
        if (!kernels.supported()) continue;
        for (const int64_t step : {int64_t{1300}, int64_t{512}, int64_t{7}}) {
            ThreadPool pool(step == 7 ? 3 : 1);
            Gram gram(n, kernels);
            for (int64_t t = 0; t < rows; t += step) {
                const int64_t count = std::min(step, rows - t);
                ASSERT_TRUE(gram.add(x.data() + t * n, count, n,
                                     std::span(weights).subspan(static_cast<size_t>(t), static_cast<size_t>(count)),
                                     pool)
                                .ok());
            }
            gram.finish(pool);
            EXPECT_EQ(gram.tokens(), rows);
            if (want.empty()) want.assign(gram.sums().begin(), gram.sums().end());
            EXPECT_EQ(std::memcmp(want.data(), gram.sums().data(), want.size() * 8), 0) << kernels.name << step;
        }
    }
    double sum = 0, size = 0;
    for (int64_t t = 0; t < rows; ++t) {
        const double a = double{x[static_cast<size_t>(t * n + 3)]}, b = double{x[static_cast<size_t>(t * n + 129)]};
        sum += double{weights[static_cast<size_t>(t)]} * a * b;
        size += double{weights[static_cast<size_t>(t)]} * std::abs(a * b);
    }
    EXPECT_NEAR(want[3 * n + 129], sum, 1e-6 * size);
    EXPECT_EQ(want[3 * n + 129], want[129 * n + 3]);
}

TEST(Gram, LocalBlocksAreTheDiagonalBlocks) {
    const int64_t n = 48, rows = 700;
    const auto x = correlated_rows(rows, n, 2);
    ThreadPool pool(2);
    LocalGram local(n, test::best_solver());
    ASSERT_TRUE(local.add(x.data(), rows, n, {}, pool).ok());
    local.finish(pool);
    const Gram whole = gram_of(x, n);
    const auto mean = local.mean();
    for (int64_t b = 0; b < 3; ++b)
        for (int64_t i = 0; i < 16; ++i)
            for (int64_t j = 0; j < 16; ++j)
                EXPECT_NEAR(mean[static_cast<size_t>((b * 16 + i) * 16 + j)],
                            whole.sums()[static_cast<size_t>((b * 16 + i) * n + b * 16 + j)] / rows, 1e-4);
}

TEST(Gram, NamesTheFirstValueThatIsNotFinite) {
    std::vector<float> x(3 * 16, 1.0f);
    x[37] = NAN;
    ThreadPool pool(1);
    Gram gram(16, test::best_solver());
    const Status status = gram.add(x.data(), 3, 16, {}, pool);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().message(), "row 2, column 5 is not finite");
}

TEST(Gram, SumsOfBytesNameTheFirstValueThatIsNotFinite) {
    ThreadPool pool(1);
    for (const int64_t rows : {3, 200}) {  // fewer and more rows than share a scale
        std::vector<float> x(static_cast<size_t>(rows * 16), 1.0f);
        x[37] = NAN;
        Gram gram(16, test::best_solver(), *select_byte_kernels());
        const Status status = gram.add(x.data(), rows, 16, {}, pool);
        ASSERT_FALSE(status.ok());
        EXPECT_EQ(status.error().message(), "row 2, column 5 is not finite");
    }
}

TEST(Gram, SumsOfBytesAreCloseAndTheSameForAnySplitAndThreads) {
    const int64_t rows = 5100, n = 70;  // more than one chunk
    const std::vector<float> x = correlated_rows(rows, n, 8);
    std::vector<float> w(static_cast<size_t>(rows));
    for (size_t t = 0; t < w.size(); ++t) w[t] = static_cast<float>(t % 7);
    const auto sums = [&](int64_t split, int threads, const ByteKernels* bytes) {
        ThreadPool pool(threads);
        Gram gram(n, test::best_solver(), bytes);
        for (int64_t t = 0; t < rows; t += split) {
            const int64_t count = std::min(split, rows - t);
            EXPECT_TRUE(gram.add(x.data() + t * n, count, n, {w.data() + t, static_cast<size_t>(count)}, pool).ok());
        }
        gram.finish(pool);
        return std::vector<double>(gram.sums().begin(), gram.sums().end());
    };
    const std::vector<double> exact = sums(rows, 1, nullptr), bytes = sums(rows, 1, *select_byte_kernels());
    EXPECT_EQ(bytes, sums(333, 3, *select_byte_kernels()));
    EXPECT_EQ(bytes, sums(rows, 2, &byte_kernels().back()));
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j) {
            const auto at = [&](int64_t a, int64_t b) { return exact[static_cast<size_t>(a * n + b)]; };
            EXPECT_NEAR(bytes[static_cast<size_t>(i * n + j)], at(i, j), 2e-3 * std::sqrt(at(i, i) * at(j, j)));
        }
}

TEST(Gram, AddsAnUpperTriangle) {
    Gram gram = Gram::of(std::vector<double>{1, 2, 2, 3}, 2, 1, 1);
    const float upper[] = {10, 20, 30};
    ThreadPool pool(2);
    gram.add_upper(upper, 0.5, pool);
    EXPECT_TRUE(std::ranges::equal(gram.sums(), std::vector<double>{6, 12, 12, 18}));
}

class NibbleBestTest : public ::testing::Test {
protected:
    const int64_t n_ = 70, k_ = 160;
    const Matrix w_ = random_weight(n_, k_);
    const Gram h_ = gram_of(correlated_rows(600, k_, 1), k_), g_ = gram_of(correlated_rows(600, n_, 2), n_);
};

TEST_F(NibbleBestTest, BeatsTheMaximumAndGptqOnTheErrorItMinimises) {
    const QuantMatrix plain = by_maximum(w_);
    ThreadPool pool(1);
    QuantMatrix gptq = blank(w_);
    const float amax = test::best_quantize().scan(w_.view()).amax;
    const std::vector<float> hessian(h_.sums().begin(), h_.sums().end());
    ASSERT_TRUE(quantize_gptq(w_.view(), hessian, {Format::nvfp4, true, 448, {}, Arithmetic::true_division},
                              {amax, amax}, {}, test::best_solver(), pool, gptq.span())
                    .ok());
    const QuantMatrix columns = solved(w_, h_, nullptr), both = solved(w_, h_, &g_);
    EXPECT_LT(curvature(w_, gptq, h_, nullptr), 0.5 * curvature(w_, plain, h_, nullptr));
    EXPECT_LT(curvature(w_, columns, h_, nullptr), 0.8 * curvature(w_, gptq, h_, nullptr));
    EXPECT_LT(curvature(w_, both, h_, &g_), 0.7 * curvature(w_, columns, h_, &g_));
}

TEST_F(NibbleBestTest, DescentLowersTheError) {
    for (const Gram* g : {static_cast<const Gram*>(nullptr), &g_}) {
        const double without = curvature(w_, solved(w_, h_, g, {.sweeps = 0}), h_, g);
        const double with = curvature(w_, solved(w_, h_, g, {.sweeps = 3}), h_, g);
        EXPECT_LT(with, without);
        EXPECT_GT(with, 0.5 * without);
    }
}

TEST_F(NibbleBestTest, EveryEntryAndThreadCountGivesTheSameBytes) {
    for (const Gram* g : {static_cast<const Gram*>(nullptr), &g_}) {
        const NibbleBestOptions options{.sweeps = 3};
        const QuantMatrix want = solved(w_, h_, g, options, solver_kernels().back());
        for (const SolverKernels& kernels : solver_kernels())
            for (int threads : {1, 3})
                if (kernels.supported()) {
                    EXPECT_TRUE(same(want, solved(w_, h_, g, options, kernels, threads))) << kernels.name;
                }
    }
}

// Without correlations there is nothing to compensate: each block uses the scale with the least squared error among its
// candidates.
TEST_F(NibbleBestTest, WithADiagonalHessianItRoundsEachWeightToTheNearest) {
    std::vector<double> eye(static_cast<size_t>(k_ * k_));
    for (int64_t i = 0; i < k_; ++i) eye[static_cast<size_t>(i * k_ + i)] = 1;
    const QuantMatrix q = solved(w_, Gram::of(eye, k_, 1, 1), nullptr), plain = by_maximum(w_);
    const auto ours = errors(w_, q), theirs = errors(w_, plain);
    for (int64_t b = 0; b < n_ * k_ / 16; ++b) {
        double mine = 0, base = 0;
        for (int64_t i = b * 16; i < (b + 1) * 16; ++i) {
            mine += ours[static_cast<size_t>(i)] * ours[static_cast<size_t>(i)];
            base += theirs[static_cast<size_t>(i)] * theirs[static_cast<size_t>(i)];
        }
        EXPECT_LE(mine, base * (1 + 1e-6)) << b;
    }
}

// Codes are computed from the export's dtype: FP32 weights near a tie of BF16's grid lose less than after rounding to
// BF16.
TEST_F(NibbleBestTest, KeepsTheValuesOfF32Weights) {
    std::mt19937 random(9);
    std::normal_distribution<float> normal(0.0f, 0.05f);
    Matrix w(DType::f32, n_, k_);
    std::vector<float> values(static_cast<size_t>(n_ * k_));
    for (float& v : values) v = normal(random);
    std::memcpy(w.data.data(), values.data(), 4 * values.size());
    const auto error = [&](DType weights) {
        ThreadPool pool(1);
        QuantMatrix q = blank(w);
        EXPECT_TRUE(nibble_best(w.view(), weights, h_, nullptr, {}, test::best_solver(), pool, q.span()).ok());
        std::vector<float> decoded(values.size());
        test::best_quantize().decode(q.view(), decoded.data());
        double sum = 0;
        for (int64_t r = 0; r < n_; ++r)
            for (int64_t i = 0; i < k_; ++i) {
                double row = 0;
                for (int64_t j = 0; j < k_; ++j)
                    row += (double{values[size_t(r * k_ + j)]} - double{decoded[size_t(r * k_ + j)]}) *
                           h_.sums()[size_t(i * k_ + j)];
                sum += row * (double{values[size_t(r * k_ + i)]} - double{decoded[size_t(r * k_ + i)]});
            }
        return std::pair(sum, q.codes);
    };
    const auto kept = error(DType::f32), rounded = error(DType::bf16);
    EXPECT_NE(kept.second, rounded.second);
    EXPECT_LT(kept.first, rounded.first);
}

TEST_F(NibbleBestTest, ZeroInputsAndZeroWeightsWork) {
    auto x = correlated_rows(600, k_, 1);
    for (size_t i = 0; i < x.size(); ++i)
        if (i % static_cast<size_t>(k_) < 20 || i % static_cast<size_t>(k_) == 100) x[i] = 0;
    Matrix w = w_;
    std::memset(w.data.data() + 2 * k_, 0, static_cast<size_t>(2 * k_));  // row 1
    const Gram h = gram_of(x, k_);
    const QuantMatrix q = solved(w, h, nullptr);
    const auto e = errors(w, q);
    for (int64_t j = 0; j < k_; ++j) EXPECT_EQ(e[static_cast<size_t>(k_ + j)], 0.0);
    EXPECT_LT(curvature(w, q, h, nullptr), curvature(w, by_maximum(w), h, nullptr));
    for (uint8_t scale : q.block_scales) EXPECT_TRUE(scale >= 1 && scale <= e4m3_max_code);
}

TEST_F(NibbleBestTest, FewerTokensThanInputsAreEnoughWithDamping) {
    const Gram h = gram_of(correlated_rows(40, k_, 1), k_);
    EXPECT_LT(curvature(w_, solved(w_, h, nullptr), h, nullptr), 0.2 * curvature(w_, by_maximum(w_), h, nullptr));
}

TEST_F(NibbleBestTest, WrongShapesAreErrors) {
    ThreadPool pool(1);
    QuantMatrix q = blank(w_);
    const auto run = [&](const Gram& h, const Gram* g) {
        const auto r = nibble_best(w_.view(), DType::bf16, h, g, {}, test::best_solver(), pool, q.span());
        return r.ok() ? std::string() : r.error().message();
    };
    EXPECT_EQ(run(g_, nullptr), "calibration statistics have 70 inputs, the matrix has 160 columns");
    EXPECT_EQ(run(h_, &h_), "calibration statistics have 160 outputs, the matrix has 70 rows");
    q.tensor_scale = 0;
    EXPECT_EQ(run(h_, nullptr), "weights with a tensor scale of 0 are too small");
}

// Compares with tests/oracles/nibble_best.py (FP64): equal choices, except after a tie that FP32 decides, and then in
// the rest of that row.
TEST(NibbleBestOracle, NumpyMakesTheSameChoices) {
    const auto file = SafetensorsFile::open(test::test_data("nibble_best.safetensors"));
    ASSERT_TRUE(file.ok()) << file.error().message();
    const auto bf16 = [&](std::string_view name) {
        const TensorRecord& t = *file->find(name);
        Matrix m(DType::bf16, t.shape[0], t.shape[1]);
        std::memcpy(m.data.data(), t.data.data(), t.data.size());
        return m;
    };
    const auto gram = [&](std::string_view name) {
        const Matrix m = bf16(name);
        std::vector<float> x(static_cast<size_t>(m.rows * m.cols));
        for (size_t i = 0; i < x.size(); ++i) {
            uint16_t code;
            std::memcpy(&code, m.data.data() + 2 * i, 2);
            x[i] = bf16_to_float(code);
        }
        return gram_of(x, m.cols);
    };
    const Matrix w = bf16("weight");
    const Gram h = gram("x"), g = gram("gradient");
    for (const std::string name : {"columns", "rows"}) {
        SCOPED_TRACE(name);
        const QuantMatrix ours = solved(w, h, name == "rows" ? &g : nullptr, {.sweeps = 0});
        QuantMatrix theirs = blank(w);
        const auto copy = [&](std::vector<uint8_t>& to, const TensorRecord& from) {
            ASSERT_EQ(to.size(), from.data.size());
            std::memcpy(to.data(), from.data.data(), to.size());
        };
        copy(theirs.codes, *file->find(name + ".codes"));
        copy(theirs.block_scales, *file->find(name + ".scales"));
        const auto differing = [](const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
            size_t count = 0;
            for (size_t i = 0; i < a.size(); ++i) count += a[i] != b[i];
            return static_cast<double>(count) / static_cast<double>(a.size());
        };
        EXPECT_LT(differing(ours.codes, theirs.codes), 0.02);
        EXPECT_LT(differing(ours.block_scales, theirs.block_scales), 0.02);
        const Gram* rows = name == "rows" ? &g : nullptr;
        EXPECT_NEAR(curvature(w, ours, h, rows) / curvature(w, theirs, h, rows), 1.0, 0.01);
    }
}

}  // namespace
}  // namespace nibble
