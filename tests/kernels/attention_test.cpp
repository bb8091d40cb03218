// Attention: the reference against a softmax in FP64, every entry against the reference, pages against any chunking.
#include "kernels/attention.h"
#include "kernels/kv_page.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace nibble {
namespace {

struct Problem {
    AttentionShape shape;
    int64_t tokens;
    std::vector<float> q, k, v;

    Problem(const AttentionShape& s, int64_t n) : shape(s), tokens(n) {
        std::mt19937 random(7);
        std::normal_distribution<float> normal;
        const auto fill = [&](std::vector<float>& x, int64_t cols) {
            x.resize(static_cast<size_t>(n * cols));
            for (float& value : x) value = round_to_bf16(normal(random));
        };
        fill(q, int64_t{s.heads} * s.kv.k_dim);
        fill(k, int64_t{s.kv.heads} * s.kv.k_dim);
        fill(v, int64_t{s.kv.heads} * s.kv.v_dim);
    }
    int64_t q_cols() const { return int64_t{shape.heads} * shape.kv.k_dim; }
    int64_t y_cols() const { return int64_t{shape.heads} * shape.kv.v_dim; }
    int64_t k_cols() const { return int64_t{shape.kv.heads} * shape.kv.k_dim; }
    int64_t v_cols() const { return int64_t{shape.kv.heads} * shape.kv.v_dim; }
};

// Stores and attends in chunks. Pages start with garbage that must not affect the result.
std::vector<float> run(const AttentionKernels& kernels, const Problem& p, int64_t chunk, ThreadPool& pool) {
    const int64_t pages = (p.tokens + kv_page_tokens - 1) / kv_page_tokens, bytes = kv_page_bytes(p.shape.kv);
    std::vector<std::byte> memory(static_cast<size_t>(pages * bytes), std::byte{0xFF});
    std::vector<std::byte*> table;
    for (int64_t t = 0; t < pages; ++t) table.push_back(memory.data() + t * bytes);
    std::vector<float> y(static_cast<size_t>(p.tokens * p.y_cols()), NAN);
    for (int64_t i = 0; i < p.tokens; i += chunk) {
        const int64_t rows = std::min(chunk, p.tokens - i);
        kv_store(p.shape.kv, table.data(), i, rows, p.k.data() + i * p.k_cols(), p.k_cols(),
                 p.v.data() + i * p.v_cols(), p.v_cols());
        const AttentionJob job{
            p.q.data() + i * p.q_cols(), y.data() + i * p.y_cols(), p.q_cols(), p.y_cols(), rows, i, table.data()};
        kernels.attend(p.shape, {&job, 1}, pool);
    }
    return y;
}

// Softmax in FP64 over the values read back from the cache.
std::vector<double> softmax_f64(const Problem& p) {
    const AttentionShape& s = p.shape;
    const int64_t pages = (p.tokens + kv_page_tokens - 1) / kv_page_tokens, bytes = kv_page_bytes(s.kv);
    std::vector<std::byte> memory(static_cast<size_t>(pages * bytes));
    std::vector<std::byte*> table;
    for (int64_t t = 0; t < pages; ++t) table.push_back(memory.data() + t * bytes);
    kv_store(s.kv, table.data(), 0, p.tokens, p.k.data(), p.k_cols(), p.v.data(), p.v_cols());
    std::vector<float> k(p.k.size()), v(p.v.size());
    for (int64_t i = 0; i < p.tokens; ++i)
        kv_load(s.kv, table.data(), i, k.data() + i * p.k_cols(), v.data() + i * p.v_cols());
    std::vector<double> y;
    for (int64_t i = 0; i < p.tokens; ++i)
        for (int h = 0; h < s.heads; ++h) {
            const int kv_head = h / (s.heads / s.kv.heads);
            int64_t first = s.window ? std::max<int64_t>(0, i - s.window + 1) : 0;
            if (s.chunk > 0) first = std::max(first, i - i % s.chunk);
            std::vector<double> w;
            double sum = s.sinks ? std::exp(double{s.sinks[h]}) : 0;
            for (int64_t j = first; j <= i; ++j) {
                double dot = 0;
                for (int d = 0; d < s.kv.k_dim; ++d)
                    dot += double{p.q[size_t(i * p.q_cols() + h * s.kv.k_dim + d)]} *
                           k[size_t(j * p.k_cols() + kv_head * s.kv.k_dim + d)];
                const double score = dot * s.scale;
                w.push_back(std::exp(s.cap > 0 ? s.cap * std::tanh(score / s.cap) : score));
                sum += w.back();
            }
            for (int d = 0; d < s.kv.v_dim; ++d) {
                double o = 0;
                for (int64_t j = first; j <= i; ++j)
                    o += w[size_t(j - first)] * v[size_t(j * p.v_cols() + kv_head * s.kv.v_dim + d)];
                y.push_back(o / sum);
            }
        }
    return y;
}

AttentionShape shape(KvType type, int heads, int kv_heads, int k_dim, int v_dim, int64_t window = 0) {
    AttentionShape s;
    s.kv = {kv_heads, k_dim, v_dim, type, 0.75f, 0.5f};
    if (type == KvType::nvfp4) s.kv.k_scale = s.kv.v_scale = 0.002f;
    s.heads = heads;
    s.scale = 1.0f / std::sqrt(static_cast<float>(k_dim));
    s.window = window;
    return s;
}

constexpr float some_sinks[] = {0.5f, -3.0f, 6.0f, 1.5f, 0.0f, -20.0f};

AttentionShape shape_with(AttentionShape s, bool sinks, float cap, int64_t chunk) {
    s.sinks = sinks ? some_sinks : nullptr;
    s.cap = cap;
    s.chunk = chunk;
    return s;
}

std::string attention_case_name(const AttentionShape& s) {
    constexpr const char* types[] = {"f32", "bf16", "fp8", "nvfp4", "fp8_page"};
    std::string name = fmt::format("{}_{}_of_{}_heads_{}x{}", types[static_cast<int>(s.kv.type)], s.kv.heads, s.heads,
                                   s.kv.k_dim, s.kv.v_dim);
    if (s.window > 0) name += fmt::format("_window_{}", s.window);
    if (s.chunk > 0) name += fmt::format("_chunk_{}", s.chunk);
    return name + (s.sinks ? "_sinks" : "") + (s.cap > 0 ? "_cap" : "");
}

class Attention : public testing::TestWithParam<AttentionShape> {};

TEST_P(Attention, ReferenceIsASoftmax) {
    ThreadPool pool(1);
    const Problem p(GetParam(), 150);
    const auto y = run(attention_kernels().back(), p, 150, pool);
    const auto expected = softmax_f64(p);
    for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected[i], 3e-6) << i;
}

TEST_P(Attention, EveryEntryAndChunkingGivesTheSameBits) {
    ThreadPool one(1), two(2);
    for (const bool bf16 : {false, true}) {
        Problem p(GetParam(), 141);
        p.shape.bf16 = bf16;
        const auto expected = run(attention_kernels().back(), p, 141, two);
        for (const AttentionKernels& kernels : attention_kernels()) {
            if (!kernels.supported()) continue;
            for (const int64_t chunk : {1, 3, 64, 70, 141}) {
                if (kernels.name == "ref" && chunk != 70) continue;  // slow
                ASSERT_EQ(0, std::memcmp(run(kernels, p, chunk, chunk % 2 ? one : two).data(), expected.data(),
                                         expected.size() * sizeof(float)))
                    << kernels.name << " in chunks of " << chunk;
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Attention,
                         testing::Values(shape(KvType::f32, 4, 2, 32, 32), shape(KvType::bf16, 9, 3, 64, 64),
                                         shape(KvType::bf16, 4, 1, 8, 8), shape(KvType::bf16, 6, 2, 48, 80, 70),
                                         shape(KvType::f32, 3, 3, 24, 20, 5), shape(KvType::bf16, 40, 1, 80, 64),
                                         shape(KvType::fp8, 4, 2, 32, 48), shape(KvType::fp8, 2, 2, 16, 16, 64),
                                         shape(KvType::fp8_page, 4, 2, 32, 48),
                                         shape(KvType::fp8_page, 3, 1, 40, 20, 64), shape(KvType::nvfp4, 4, 2, 32, 48),
                                         shape(KvType::nvfp4, 8, 2, 128, 64, 100),
                                         shape_with(shape(KvType::f32, 4, 2, 32, 32, 20), true, 0, 0),
                                         shape_with(shape(KvType::bf16, 6, 1, 48, 32), true, 2.0f, 0),
                                         shape_with(shape(KvType::f32, 4, 2, 16, 24), false, 0.5f, 16),
                                         shape_with(shape(KvType::bf16, 4, 4, 32, 32, 30), true, 50.0f, 80)),
                         [](const auto& info) { return attention_case_name(info.param); });

// Two segments in one call do not affect each other.
TEST(AttentionJobs, AreIndependent) {
    ThreadPool pool(2);
    const AttentionKernels& kernels = **select_attention_kernels();
    const Problem a(shape(KvType::bf16, 4, 2, 32, 32), 90);
    const auto alone = run(kernels, a, 90, pool);
    const int64_t bytes = kv_page_bytes(a.shape.kv);
    std::vector<std::byte> memory(static_cast<size_t>(4 * bytes));
    std::byte* first[2] = {memory.data(), memory.data() + bytes};
    std::byte* second[2] = {memory.data() + 2 * bytes, memory.data() + 3 * bytes};
    kv_store(a.shape.kv, first, 0, 90, a.k.data(), a.k_cols(), a.v.data(), a.v_cols());
    kv_store(a.shape.kv, second, 0, 90, a.k.data(), a.k_cols(), a.v.data(), a.v_cols());
    std::vector<float> y(2 * alone.size());
    const AttentionJob jobs[2] = {{a.q.data(), y.data(), a.q_cols(), a.y_cols(), 90, 0, first},
                                  {a.q.data(), y.data() + alone.size(), a.q_cols(), a.y_cols(), 90, 0, second}};
    kernels.attend(a.shape, std::span(jobs), pool);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), y.begin()));
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), y.begin() + int64_t(alone.size())));
}

// A NaN in the value of a later row, or of a row outside the window, has no effect.
TEST(AttentionJobs, RowsDoNotSeeWhatIsMasked) {
    ThreadPool pool(1);
    for (const AttentionKernels& kernels : attention_kernels()) {
        if (!kernels.supported()) continue;
        Problem p(shape(KvType::f32, 3, 1, 16, 16, 20), 100);
        const auto clean = run(kernels, p, 100, pool);
        p.v[50 * 16 + 3] = NAN, p.k[50 * 16 + 3] = NAN;
        const auto y = run(kernels, p, 100, pool);
        for (int64_t i = 0; i < 100; ++i)
            for (int64_t h = 0; h < 3; ++h) {
                const size_t at = size_t((i * 3 + h) * 16 + 3);
                if (i < 50 || i >= 70) {
                    ASSERT_EQ(y[at], clean[at]) << kernels.name << " row " << i;
                } else {
                    ASSERT_TRUE(std::isnan(y[at])) << kernels.name << " row " << i;
                }
            }
    }
}

// fp8_page: the stored value at a position depends on that position's row only and is within half a step of the row's
// largest element, whatever its neighbours are. Here they are 30 binades apart, which no common scale of a page could
// hold.
TEST(KvPages, ScalesInThePageAreOfOneRow) {
    const KvShape s{2, 24, 20, KvType::fp8_page};
    std::vector<std::byte> memory(static_cast<size_t>(2 * kv_page_bytes(s)), std::byte{0xFF});
    std::byte* pages[2] = {memory.data(), memory.data() + kv_page_bytes(s)};
    Problem p({.kv = s, .heads = 2}, 100);
    const auto size = [](int64_t i) { return std::ldexp(1.0f, static_cast<int>(i * 7 % 31) - 15); };
    for (int64_t i = 0; i < 100; ++i) {
        for (int64_t c = 0; c < 48; ++c) p.k[size_t(i * 48 + c)] *= size(i);
        for (int64_t c = 0; c < 40; ++c) p.v[size_t(i * 40 + c)] *= size(i + 1);
    }
    std::fill_n(p.v.begin() + 3 * 40, 20, 0.0f);  // a head's row of zeros
    kv_store(s, pages, 0, 100, p.k.data(), 48, p.v.data(), 40);
    float k[48], v[40];
    const auto near = [](const float* stored, const float* x, int dim) {
        float amax = 0;
        for (int d = 0; d < dim; ++d) amax = std::max(amax, std::abs(x[d]));
        for (int d = 0; d < dim; ++d) {
            // Half a step of 3 mantissa bits; the smallest step is 2^-9 of a scale that is at most amax / 224.
            const float bound = std::max(std::abs(x[d]) / 16, std::ldexp(amax / 224, -10));
            ASSERT_LE(std::abs(stored[d] - x[d]), bound) << d;
        }
    };
    for (int64_t i = 0; i < 100; ++i)
        for (int head = 0; head < 2; ++head) {
            kv_load(s, pages, i, k, v);
            near(k + head * 24, p.k.data() + i * 48 + head * 24, 24);
            near(v + head * 20, p.v.data() + i * 40 + head * 20, 20);
        }
}

TEST(KvShapes, WhatCannotBeStoredIsAnError) {
    EXPECT_FALSE(check(KvShape{2, 24, 32, KvType::nvfp4}).ok());
    EXPECT_FALSE(check(KvShape{2, 0, 32}).ok());
    EXPECT_FALSE(check(KvShape{2, 32, 4096}).ok());
    EXPECT_FALSE(check(KvShape{2, 32, 32, KvType::fp8, 0.0f, 1.0f}).ok());
    EXPECT_TRUE(check(KvShape{2, 24, 32, KvType::fp8}).ok());
}

}  // namespace
}  // namespace nibble
