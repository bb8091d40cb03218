// The scan and the convolution: every entry equals ref bit for bit, splits of a text do not matter, FP64 is the oracle.
#include "kernels/ssm.h"

#include "formats/minifloat.h"
#include "formats/stochastic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

namespace nibble {
namespace {

struct Case {
    int heads, head_dim, groups, state;
    int64_t tokens;
};

struct Text {
    explicit Text(const Case& c, uint32_t seed = 1) : shape(c) {
        std::mt19937 rng(seed);
        std::normal_distribution<float> normal;
        const auto fill = [&](std::vector<float>& v, int64_t n) {
            v.resize(static_cast<size_t>(n));
            for (float& x : v) x = normal(rng);
        };
        stride = int64_t{c.heads} * c.head_dim + 2LL * c.groups * c.state + 3;
        fill(rows, c.tokens * stride);
        fill(dt, c.tokens * c.heads);
        fill(d, c.heads);
        decay.resize(dt.size());
        for (size_t i = 0; i < dt.size(); ++i) {
            dt[i] = std::abs(dt[i]) * 0.3f;
            decay[i] = std::exp(-dt[i]);
        }
    }
    SsmScan scan(int64_t from, int64_t count, float* y) const {
        const float* x = rows.data() + from * stride;
        const int64_t inner = int64_t{shape.heads} * shape.head_dim, bc = int64_t{shape.groups} * shape.state;
        return {.heads = shape.heads,
                .head_dim = shape.head_dim,
                .groups = shape.groups,
                .state_size = shape.state,
                .x = x,
                .b = x + inner,
                .c = x + inner + bc,
                .stride = stride,
                .decay = decay.data() + from * shape.heads,
                .dt = dt.data() + from * shape.heads,
                .d = d.data(),
                .y = y + from * inner,
                .tokens = count,
                .stream = {.seed = 7, .role = 3},
                .position = from};
    }
    Case shape;
    int64_t stride;
    std::vector<float> rows, dt, decay, d;
};

// Runs the text in pieces of `chunk` tokens.
std::vector<float> run(const SsmKernels& kernels, const Text& text, int64_t chunk, SsmStateFormat format,
                       ThreadPool& pool) {
    const Case& c = text.shape;
    std::vector<float> y(static_cast<size_t>(c.tokens * c.heads * c.head_dim));
    std::vector<std::byte> state(
        static_cast<size_t>(ssm_state_elements(c.heads, c.head_dim, c.state) * ssm_state_bytes(format)));
    for (int64_t from = 0; from < c.tokens; from += chunk) {
        SsmScan scan = text.scan(from, std::min(chunk, c.tokens - from), y.data());
        scan.format = format;
        ssm_scan(kernels, scan, state.data(), pool);
    }
    return y;
}

const Case cases[] = {{8, 16, 2, 32, 29}, {4, 64, 1, 128, 9}, {2, 80, 2, 20, 7}, {3, 5, 3, 3, 17}};

TEST(Ssm, EntriesCutsAndThreadsGiveTheSameBits) {
    ThreadPool one(1), three(3);
    for (const Case& c : cases) {
        const Text text(c);
        for (const SsmStateFormat format :
             {SsmStateFormat::f32, SsmStateFormat::bf16, SsmStateFormat::fp16, SsmStateFormat::fp16_stochastic}) {
            const std::vector<float> want = run(ssm_kernels().back(), text, c.tokens, format, one);
            for (const SsmKernels& kernels : ssm_kernels()) {
                if (!kernels.supported()) continue;
                for (const int64_t chunk : {int64_t{1}, int64_t{4}, c.tokens}) {
                    const std::vector<float> y = run(kernels, text, chunk, format, three);
                    EXPECT_EQ(std::memcmp(y.data(), want.data(), 4 * y.size()), 0)
                        << kernels.name << ", chunk " << chunk << ", format " << int(format);
                }
            }
        }
    }
}

TEST(Ssm, EqualsTheFormulaInDouble) {
    ThreadPool pool(1);
    for (const Case& c : cases) {
        const Text text(c);
        const std::vector<float> y = run(ssm_kernels().back(), text, c.tokens, SsmStateFormat::f32, pool);
        const int64_t inner = int64_t{c.heads} * c.head_dim, bc = int64_t{c.groups} * c.state;
        double worst = 0, largest = 0;
        for (int h = 0; h < c.heads; ++h)
            for (int p = 0; p < c.head_dim; ++p) {
                std::vector<double> state(static_cast<size_t>(c.state));
                for (int64_t t = 0; t < c.tokens; ++t) {
                    const float* row = text.rows.data() + t * text.stride;
                    const float* b = row + inner + h / (c.heads / c.groups) * c.state;
                    const double x = row[h * c.head_dim + p], dt = text.dt[t * c.heads + h];
                    double sum = text.d[h] * x;
                    for (int s = 0; s < c.state; ++s) {
                        state[s] = text.decay[t * c.heads + h] * state[s] + dt * x * b[s];
                        sum += state[s] * b[bc + s];
                    }
                    worst = std::max(worst, std::abs(sum - y[t * inner + h * c.head_dim + p]));
                    largest = std::max(largest, std::abs(sum));
                }
            }
        EXPECT_LT(worst, 2e-6 * largest);
    }
}

TEST(Ssm, NarrowStatesStayNear) {
    ThreadPool pool(1);
    const Text text(cases[1]);
    const std::vector<float> want = run(ssm_kernels().back(), text, 9, SsmStateFormat::f32, pool);
    for (const auto& [format, bound] : {std::pair{SsmStateFormat::bf16, 2e-2}, std::pair{SsmStateFormat::fp16, 3e-3},
                                        std::pair{SsmStateFormat::fp16_stochastic, 4e-3}}) {
        const std::vector<float> y = run(ssm_kernels().back(), text, 9, format, pool);
        double error = 0, power = 0;
        for (size_t i = 0; i < y.size(); ++i) {
            error += (y[i] - want[i]) * (y[i] - want[i]);
            power += want[i] * want[i];
        }
        EXPECT_GT(error, 0);
        EXPECT_LT(std::sqrt(error / power), bound);
    }
}

TEST(Ssm, ConvolutionEntriesGiveTheSameBits) {
    std::mt19937 rng(3);
    std::normal_distribution<float> normal;
    for (const int64_t channels : {1, 15, 16, 37, 256}) {
        std::vector<float> x(static_cast<size_t>(4 * channels)), w(x.size()), bias(static_cast<size_t>(channels));
        for (auto* v : {&x, &w, &bias})
            for (float& e : *v) e = normal(rng);
        const float* taps[4] = {x.data(), x.data() + channels, x.data() + 2 * channels, x.data() + 3 * channels};
        std::vector<float> want(static_cast<size_t>(channels)), y(want.size());
        ssm_kernels().back().convolve(taps, 4, w.data(), bias.data(), channels, want.data());
        for (int64_t c = 0; c < channels; ++c) {
            double sum = bias[c];
            for (int j = 0; j < 4; ++j) sum += double{w[j * channels + c]} * taps[j][c];
            EXPECT_NEAR(want[c], sum, 1e-5);
        }
        for (const SsmKernels& kernels : ssm_kernels()) {
            if (!kernels.supported()) continue;
            kernels.convolve(taps, 4, w.data(), bias.data(), channels, y.data());
            EXPECT_EQ(std::memcmp(y.data(), want.data(), 4 * y.size()), 0) << kernels.name << ' ' << channels;
        }
    }
}

// Every FP16 magnitude interval at both ends of the draw, and the mean over all draws.
TEST(Ssm, Fp16StochasticRoundsToANeighbourAndIsUnbiased) {
    for (uint32_t code = 0; code < 0x7BFF; code += 7) {
        const float low = fp16_to_float(static_cast<uint16_t>(code)), high = fp16_to_float(uint16_t(code + 1));
        EXPECT_EQ(fp16_stochastic(low, 0), code);
        EXPECT_EQ(fp16_stochastic(-low, 65535), 0x8000u | code);
        const float x = low + (high - low) * 0.375f;
        EXPECT_EQ(fp16_stochastic(x, code < 0x400 ? 0u : 65535u), code + 1);
        int up = 0;
        for (uint32_t r = 0; r < 65536; r += 8) up += fp16_stochastic(x, r) == code + 1;
        EXPECT_EQ(up, 8192 * 3 / 8) << code;
    }
    EXPECT_EQ(fp16_stochastic(1e9f, 65535), 0x7BFF);
    EXPECT_EQ(fp16_stochastic(INFINITY, 0), 0x7C00);
}

}  // namespace
}  // namespace nibble
