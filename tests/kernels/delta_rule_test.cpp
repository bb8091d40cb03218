// The gated delta rule: every entry equals ref bit for bit, cuts of a text do not matter, FP64 is the oracle of values
// and of gradients.
#include "kernels/delta_rule_backward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace nibble {
namespace {

struct DeltaCase {
    int heads, key_dim, value_dim;
    int64_t tokens;
    bool by_channel;
};
void PrintTo(const DeltaCase& c, std::ostream* out) {
    *out << c.heads << " heads of " << c.key_dim << " x " << c.value_dim << ", " << c.tokens << " tokens"
         << (c.by_channel ? ", a decay per channel" : "");
}

// Rows of q, k and v are next to each other and 3 numbers apart.
struct DeltaText {
    explicit DeltaText(const DeltaCase& c) : shape(c) {
        std::mt19937 rng(5);
        std::normal_distribution<float> normal;
        const int64_t heads = c.heads;
        stride = heads * (2 * c.key_dim + c.value_dim) + 3;
        decays = heads * (c.by_channel ? c.key_dim : 1);
        for (int64_t i = 0; i < c.tokens * stride; ++i) rows.push_back(normal(rng) / std::sqrt(float(c.key_dim)));
        for (int64_t i = 0; i < c.tokens * heads; ++i) beta.push_back(1.0f / (1.0f + std::exp(-normal(rng))));
        for (int64_t i = 0; i < c.tokens * decays; ++i) decay.push_back(std::exp(-0.3f * std::abs(normal(rng))));
    }
    int64_t key(int64_t h) const { return h * shape.key_dim; }
    DeltaHead head(int64_t h, int64_t from, int64_t count, float* state, float* y) const {
        const int64_t keys = int64_t{shape.heads} * shape.key_dim, values = int64_t{shape.heads} * shape.value_dim;
        const float* row = rows.data() + from * stride;
        return {.q = row + key(h),
                .k = row + keys + key(h),
                .key_stride = stride,
                .v = row + 2 * keys + h * shape.value_dim,
                .value_stride = stride,
                .decay = decay.data() + from * decays + (shape.by_channel ? key(h) : h),
                .beta = beta.data() + from * shape.heads + h,
                .decay_stride = decays,
                .beta_stride = shape.heads,
                .state = state,
                .y = y + from * values + h * shape.value_dim,
                .y_stride = values,
                .tokens = count,
                .key_dim = shape.key_dim,
                .value_dim = shape.value_dim,
                .decay_by_channel = shape.by_channel};
    }
    DeltaCase shape;
    int64_t stride = 0, decays = 0;
    std::vector<float> rows, beta, decay;
};

// y of the text in pieces of `chunk` tokens.
std::vector<float> run(const DeltaKernels& kernels, const DeltaText& text, int64_t chunk, int threads) {
    ThreadPool pool(threads);
    const DeltaCase& c = text.shape;
    const int64_t elements = delta_state_elements(c.key_dim, c.value_dim);
    std::vector<float> y(static_cast<size_t>(c.tokens * c.heads * c.value_dim)), states(size_t(c.heads * elements));
    for (int64_t from = 0; from < c.tokens; from += chunk) {
        std::vector<DeltaHead> heads;
        for (int64_t h = 0; h < c.heads; ++h)
            heads.push_back(
                text.head(h, from, std::min(chunk, c.tokens - from), states.data() + h * elements, y.data()));
        delta_rule(kernels, heads, pool);
    }
    return y;
}

// y of one head by the formula, in FP64, with all its inputs as arguments so that they can move.
std::vector<double> formula(const DeltaCase& c, const DeltaHead& h) {
    std::vector<double> s(size_t(c.key_dim * c.value_dim)), y;
    for (int64_t t = 0; t < c.tokens; ++t)
        for (int p = 0; p < c.value_dim; ++p) {
            double read = 0, out = 0;
            for (int i = 0; i < c.key_dim; ++i) {
                s[size_t(i * c.value_dim + p)] *= h.decay[t * h.decay_stride + (c.by_channel ? i : 0)];
                read += s[size_t(i * c.value_dim + p)] * h.k[t * h.key_stride + i];
            }
            const double u = h.beta[t * h.beta_stride] * (h.v[t * h.value_stride + p] - read);
            for (int i = 0; i < c.key_dim; ++i) {
                s[size_t(i * c.value_dim + p)] += u * h.k[t * h.key_stride + i];
                out += s[size_t(i * c.value_dim + p)] * h.q[t * h.key_stride + i];
            }
            y.push_back(out);
        }
    return y;
}

class DeltaRule : public testing::TestWithParam<DeltaCase> {};

TEST_P(DeltaRule, EntriesCutsAndThreadsGiveTheSameBits) {
    const DeltaText text(GetParam());
    const std::vector<float> want = run(delta_kernels().back(), text, GetParam().tokens, 1);
    for (const DeltaKernels& kernels : delta_kernels()) {
        if (!kernels.supported()) continue;
        for (const int64_t chunk : {int64_t{1}, int64_t{2}, int64_t{7}, GetParam().tokens})
            for (const int threads : {1, 3}) {
                const std::vector<float> y = run(kernels, text, chunk, threads);
                EXPECT_EQ(std::memcmp(y.data(), want.data(), 4 * y.size()), 0) << kernels.name << ", chunk " << chunk;
            }
    }
}

TEST_P(DeltaRule, EqualsTheFormulaInDouble) {
    const DeltaCase c = GetParam();
    const DeltaText text(c);
    std::vector<float> y =
        run(delta_kernels().front().supported() ? delta_kernels().front() : delta_kernels().back(), text, c.tokens, 1);
    for (int64_t h = 0; h < c.heads; ++h) {
        const std::vector<double> want = formula(c, text.head(h, 0, c.tokens, nullptr, y.data()));
        double largest = 0;
        for (const double w : want) largest = std::max(largest, std::abs(w));
        for (int64_t t = 0; t < c.tokens; ++t)
            for (int64_t p = 0; p < c.value_dim; ++p)
                EXPECT_NEAR(y[size_t((t * c.heads + h) * c.value_dim + p)], want[size_t(t * c.value_dim + p)],
                            2e-6 * largest + 1e-8);
    }
}

// The loss is the sum of y times random numbers; every input moves a little.
TEST_P(DeltaRule, GradientsAreSlopes) {
    const DeltaCase c = GetParam();
    DeltaText text(c);
    std::vector<float> y(static_cast<size_t>(c.tokens * c.heads * c.value_dim)), dy(y.size());
    std::mt19937 rng(6);
    for (float& d : dy) d = std::normal_distribution<float>()(rng);
    const int64_t h = c.heads - 1, keys = int64_t{c.heads} * c.key_dim;
    const DeltaHead head = text.head(h, 0, c.tokens, nullptr, y.data());
    std::vector<float> d_rows(text.rows.size()), d_beta(text.beta.size()), d_decay(text.decay.size());
    float* d_row = d_rows.data();
    delta_rule_backward(head, {.dy = dy.data() + h * c.value_dim,
                               .dq = d_row + text.key(h),
                               .dk = d_row + keys + text.key(h),
                               .dv = d_row + 2 * keys + h * c.value_dim,
                               .d_decay = d_decay.data() + (c.by_channel ? text.key(h) : h),
                               .d_beta = d_beta.data() + h});
    const auto loss = [&] {
        const std::vector<double> out = formula(c, head);
        double sum = 0;
        for (int64_t t = 0; t < c.tokens; ++t)
            for (int64_t p = 0; p < c.value_dim; ++p)
                sum += out[size_t(t * c.value_dim + p)] * dy[size_t((t * c.heads + h) * c.value_dim + p)];
        return sum;
    };
    const auto check = [&](std::vector<float>& inputs, const std::vector<float>& gradient, const char* name) {
        double largest = 0;
        for (const float g : gradient) largest = std::max(largest, std::abs(double{g}));
        EXPECT_GT(largest, 0) << name;
        for (size_t i = 0; i < inputs.size(); i += 1 + inputs.size() / 60) {
            const float before = inputs[i];
            inputs[i] = before + 1e-3f;
            const double high = loss(), from = inputs[i];
            inputs[i] = before - 1e-3f;
            const double slope = (high - loss()) / (from - inputs[i]);
            inputs[i] = before;
            EXPECT_NEAR(gradient[i], slope, 2e-4 * largest) << name << " " << i;
        }
    };
    check(text.rows, d_rows, "q, k, v");
    check(text.beta, d_beta, "beta");
    if (c.tokens > 1) check(text.decay, d_decay, "decay");  // the first token decays a state of zeros
}

INSTANTIATE_TEST_SUITE_P(Shapes, DeltaRule,
                         testing::Values(DeltaCase{3, 16, 16, 29, false}, DeltaCase{2, 64, 128, 40, false},
                                         DeltaCase{2, 5, 3, 17, false}, DeltaCase{1, 6, 24, 70, true},
                                         DeltaCase{2, 32, 8, 1, false}, DeltaCase{2, 15, 40, 33, true}));

TEST(DeltaRuleEntries, UnknownEntriesAreErrors) { EXPECT_FALSE(select_delta_kernels("mmx").ok()); }

}  // namespace
}  // namespace nibble
