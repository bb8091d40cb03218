// Kernels of the backward pass: every entry equals ref bit for bit; derivatives are compared with differences in FP64;
// packed transposes with the original matrix.
#include "kernels/elementwise_backward.h"
#include "kernels/panels.h"
#include "kernels/products.h"
#include "kernels/ssm_backward.h"
#include "kernels/unpack.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

namespace nibble {
namespace {

std::vector<float> normal(int64_t n, uint32_t seed, float scale = 1.0f) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> draw(0.0f, scale);
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = draw(rng);
    return v;
}

double activation(Activation a, double x) {
    switch (a) {
        case Activation::silu:
            return x / (1 + std::exp(-x));
        case Activation::gelu_tanh:
            return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        case Activation::relu2:
            return x > 0 ? x * x : 0;
    }
    return 0;
}

TEST(Gradient, ActivationsAreTheDerivative) {
    const int64_t n = 1003;
    const std::vector<float> x = normal(n, 1, 3.0f), up = normal(n, 2), dy = normal(n, 3);
    for (const Activation a : {Activation::silu, Activation::gelu_tanh, Activation::relu2}) {
        std::vector<float> dx(n), d_up(n), alone(n), dx2(n), d_up2(n);
        gradient_kernels().back().activate(a, x.data(), up.data(), dy.data(), n, dx.data(), d_up.data());
        gradient_kernels().back().activate(a, x.data(), nullptr, dy.data(), n, alone.data(), nullptr);
        for (int64_t i = 0; i < n; ++i) {
            const double h = 1e-5, slope = (activation(a, x[i] + h) - activation(a, x[i] - h)) / (2 * h);
            EXPECT_NEAR(alone[i], dy[i] * slope, 1e-5 * (1 + std::abs(dy[i] * slope)));
            EXPECT_NEAR(dx[i], double{dy[i]} * up[i] * slope, 1e-5 * (1 + std::abs(dy[i] * up[i] * slope)));
            EXPECT_NEAR(d_up[i], dy[i] * activation(a, x[i]), 1e-5 * (1 + std::abs(d_up[i])));
        }
        for (const GradientKernels& k : gradient_kernels()) {
            if (!k.supported()) continue;
            k.activate(a, x.data(), up.data(), dy.data(), n, dx2.data(), d_up2.data());
            EXPECT_EQ(std::memcmp(dx.data(), dx2.data(), 4 * n), 0) << k.name;
            EXPECT_EQ(std::memcmp(d_up.data(), d_up2.data(), 4 * n), 0) << k.name;
            k.activate(a, x.data(), nullptr, dy.data(), n, dx2.data(), nullptr);
            EXPECT_EQ(std::memcmp(alone.data(), dx2.data(), 4 * n), 0) << k.name;
        }
    }
}

TEST(Gradient, SoftmaxDotAndSumsAgreeToTheBit) {
    for (const int64_t n : {1, 7, 16, 129, 5000}) {
        const std::vector<float> x = normal(n, 4, 4.0f), dp = normal(n, 5);
        const GradientKernels& ref = gradient_kernels().back();
        std::vector<float> p(n), dx(n), acc = dp;
        ref.softmax(x.data(), n, p.data());
        double total = 0;
        for (const float v : p) total += v;
        EXPECT_NEAR(total, 1.0, 1e-5);
        ref.softmax_backward(p.data(), dp.data(), n, 0.5f, dx.data());
        double sum = 0;
        for (const float v : dx) sum += v;
        EXPECT_NEAR(sum, 0.0, 1e-5);
        ref.add_scaled(0.3f, x.data(), n, acc.data());
        for (const GradientKernels& k : gradient_kernels()) {
            if (!k.supported()) continue;
            std::vector<float> p2(n), dx2 = dp, acc2 = dp;
            k.softmax(x.data(), n, p2.data());
            k.softmax_backward(p2.data(), dx2.data(), n, 0.5f, dx2.data());
            k.add_scaled(0.3f, x.data(), n, acc2.data());
            EXPECT_EQ(std::memcmp(p.data(), p2.data(), 4 * n), 0) << k.name << ' ' << n;
            EXPECT_EQ(std::memcmp(dx.data(), dx2.data(), 4 * n), 0) << k.name << ' ' << n;
            EXPECT_EQ(std::memcmp(acc.data(), acc2.data(), 4 * n), 0) << k.name << ' ' << n;
            EXPECT_EQ(ref.dot(x.data(), dp.data(), n), k.dot(x.data(), dp.data(), n)) << k.name;
        }
    }
}

// Products with the packed forms of one matrix, one column at a time, return its elements.
TEST(Unpack, TransposesHoldTheMatrix) {
    ThreadPool pool(2);
    const int64_t rows = 37, cols = 45, stride = 50;
    const std::vector<float> x = normal(rows * stride, 6);
    const PackedMatrix straight = pack_rows(x.data(), rows, cols, stride, pool);
    const PackedMatrix turned = pack_transposed(x.data(), rows, cols, stride, pool);
    const PackedMatrix back = transposed(turned, pool), forth = transposed(straight, pool);
    const MatmulKernels& ref = matmul_kernels().back();
    std::vector<float> out(static_cast<size_t>(std::max(rows, cols)));
    for (int64_t c = 0; c < cols; ++c) {
        std::vector<float> unit(static_cast<size_t>(cols));
        unit[c] = 1.0f;
        for (const PackedMatrix* m : {&straight, &back}) {
            ASSERT_EQ(m->rows(), rows);
            ref.matmul(*m, {.x = unit.data(), .rows = 1, .stride = cols}, {out.data(), rows}, pool);
            for (int64_t r = 0; r < rows; ++r) EXPECT_EQ(out[r], x[r * stride + c]);
        }
    }
    for (int64_t r = 0; r < rows; ++r) {
        std::vector<float> unit(static_cast<size_t>(rows));
        unit[r] = 1.0f;
        for (const PackedMatrix* m : {&turned, &forth}) {
            ASSERT_EQ(m->rows(), cols);
            ref.matmul(*m, {.x = unit.data(), .rows = 1, .stride = rows}, {out.data(), cols}, pool);
            for (int64_t c = 0; c < cols; ++c) EXPECT_EQ(out[c], x[r * stride + c]);
        }
    }
}

TEST(Unpack, EveryFormatTransposesToItsValues) {
    ThreadPool pool(2);
    const int64_t rows = 77, cols = 256;
    for (const test::WeightKind& kind : test::weight_kinds()) {
        const test::Weight weight = test::make_weight(kind.format, kind.dtype, rows, cols, 11);
        auto packed = weight.pack(pool);
        ASSERT_TRUE(packed.ok()) << kind.name;
        const std::vector<float> values = weight.values();
        const PackedMatrix turned = transposed(*packed, pool);
        ASSERT_EQ(turned.rows(), cols);
        ASSERT_EQ(turned.cols(), rows);
        for (int64_t k = 0; k < cols; ++k) {
            const auto* words = reinterpret_cast<const float*>(turned.panels().panel_words(k / panel_rows));
            for (int64_t n = 0; n < rows; ++n) {
                const float want = values[n * cols + k];  // decoders multiply the scales in another order
                EXPECT_NEAR(words[n * panel_rows + k % panel_rows], want, 1e-6 * std::abs(want)) << kind.name;
            }
        }
    }
}

// Every gradient of sum(y * dy) against a central difference of the forward scan.
TEST(SsmBackward, IsTheDerivativeOfTheScan) {
    ThreadPool pool(2);
    const int heads = 4, dim = 5, groups = 2, state = 3;
    const int64_t tokens = 41, inner = heads * dim, bc = groups * state, stride = inner + 2 * bc;
    std::vector<float> rows = normal(tokens * stride, 7), dt = normal(tokens * heads, 8), d = normal(heads, 9);
    std::vector<float> decay(dt.size());
    for (size_t i = 0; i < dt.size(); ++i) decay[i] = 0.5f + 0.4f * std::tanh(dt[i]);
    const std::vector<float> dy = normal(tokens * inner, 10);
    std::vector<float> y(dy.size());
    SsmScan scan{.heads = heads,
                 .head_dim = dim,
                 .groups = groups,
                 .state_size = state,
                 .x = rows.data(),
                 .b = rows.data() + inner,
                 .c = rows.data() + inner + bc,
                 .stride = stride,
                 .decay = decay.data(),
                 .dt = dt.data(),
                 .d = d.data(),
                 .y = y.data(),
                 .tokens = tokens};
    const auto loss = [&] {
        std::vector<std::byte> memory(static_cast<size_t>(4 * ssm_state_elements(heads, dim, state)));
        ssm_scan(ssm_kernels().back(), scan, memory.data(), pool);
        double sum = 0;
        for (size_t i = 0; i < y.size(); ++i) sum += double{y[i]} * dy[i];
        return sum;
    };
    std::vector<float> d_rows(rows.size()), d_decay(dt.size()), d_dt(dt.size()), dd(d.size());
    ssm_scan_backward(scan,
                      {.dy = dy.data(),
                       .dx = d_rows.data(),
                       .db = d_rows.data() + inner,
                       .dc = d_rows.data() + inner + bc,
                       .d_decay = d_decay.data(),
                       .d_dt = d_dt.data(),
                       .dd = dd.data()},
                      pool);
    const auto compare = [&](std::vector<float>& values, const std::vector<float>& gradient, const char* what) {
        for (size_t i = 0; i < values.size(); i += 1 + values.size() / 150) {
            const float kept = values[i], h = 1e-2f;
            values[i] = kept + h;
            const double up = loss();
            values[i] = kept - h;
            const double down = loss();
            values[i] = kept;
            EXPECT_NEAR(gradient[i], (up - down) / (2 * h), 2e-2 * (1 + std::abs(gradient[i]))) << what << ' ' << i;
        }
    };
    compare(rows, d_rows, "rows");
    compare(dt, d_dt, "dt");
    compare(decay, d_decay, "decay");
    compare(d, dd, "D");
}

}  // namespace
}  // namespace nibble
