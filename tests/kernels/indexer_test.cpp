// The choice of keys: the reference against a sort of scores in FP64, every entry against the reference, any chunking.
// Attention over a choice: against a softmax in FP64 over the chosen keys, every entry against the reference.
#include "kernels/indexer.h"

#include "kernels/kv_page.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

namespace nibble {
namespace {

std::vector<float> index_numbers(int64_t n, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(n));
    for (float& value : x) value = round_to_bf16(normal(random));
    return x;
}

struct IndexProblem {
    IndexShape shape;
    int64_t tokens;
    std::vector<float> q, k, w;

    IndexProblem(const IndexShape& s, int64_t n)
        : shape(s),
          tokens(n),
          q(index_numbers(n * s.heads * s.dim, 1)),
          k(index_numbers(n * s.dim, 2)),
          w(index_numbers(n * s.heads, 3)) {}
    int64_t keys() const { return shape.visible(tokens - 1); }
};

struct IndexPages {
    IndexPages(int64_t count, int64_t bytes) : memory(static_cast<size_t>(count * bytes), std::byte{0xFF}) {
        for (int64_t p = 0; p < count; ++p) table.push_back(memory.data() + p * bytes);
    }
    std::vector<std::byte> memory;  // starts with garbage
    std::vector<std::byte*> table;
};

// Returns one flag per row, group and key. The rows are processed in chunks.
std::vector<bool> choose(const IndexKernels& kernels, const IndexProblem& p, int64_t chunk, ThreadPool& pool) {
    const IndexShape& s = p.shape;
    IndexPages pages(choice_words(p.tokens), s.page_bytes());
    std::vector<bool> flags;
    for (int64_t at = 0; at < p.tokens; at += chunk) {
        const int64_t rows = std::min(chunk, p.tokens - at), first = at / s.rate, last = (at + rows) / s.rate;
        index_store(s, pages.table.data(), first, last - first, p.k.data() + first * s.dim, s.dim);
        const int64_t words = choice_words(s.visible(at + rows - 1));
        std::vector<uint64_t> bits(static_cast<size_t>(rows * s.groups() * words), 0x5555);
        const IndexJob job{.q = p.q.data() + at * s.heads * s.dim,
                           .weights = p.w.data() + at * s.heads,
                           .q_stride = int64_t{s.heads} * s.dim,
                           .weight_stride = s.heads,
                           .rows = rows,
                           .position = at,
                           .pages = pages.table.data(),
                           .chosen = bits.data(),
                           .words = words};
        kernels.choose(s, {&job, 1}, pool);
        for (int64_t r = 0; r < rows * s.groups(); ++r)
            for (int64_t key = 0; key < p.keys(); ++key)
                flags.push_back(key / 64 < words && (bits[size_t(r * words + key / 64)] >> (key % 64) & 1));
    }
    return flags;
}

// The definition with scores in FP64 and a stable sort.
std::vector<bool> expected_choice(const IndexProblem& p) {
    const IndexShape& s = p.shape;
    std::vector<bool> flags;
    for (int64_t t = 0; t < p.tokens; ++t)
        for (int group = 0; group < s.groups(); ++group) {
            const int64_t visible = (t + 1) / s.rate, runs = (visible + s.block - 1) / s.block;
            std::vector<double> best(static_cast<size_t>(runs), -INFINITY);
            for (int64_t key = 0; key < visible; ++key) {
                double score = 0;
                for (int h = s.weighted ? 0 : group; h < (s.weighted ? s.heads : group + 1); ++h) {
                    double dot = 0;
                    for (int d = 0; d < s.dim; ++d)
                        dot += double{p.q[size_t((t * s.heads + h) * s.dim + d)]} * p.k[size_t(key * s.dim + d)];
                    dot *= double{s.scale};
                    score += s.weighted ? double{p.w[size_t(t * s.heads + h)]} * std::max(dot, 0.0) : dot;
                }
                best[size_t(key / s.block)] = std::max(best[size_t(key / s.block)], score);
            }
            for (int64_t run = std::max<int64_t>(runs - s.local, 0); run < runs; ++run) best[size_t(run)] = INFINITY;
            std::vector<size_t> order(best.size());
            std::iota(order.begin(), order.end(), size_t{0});
            std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return best[a] > best[b]; });
            std::vector<bool> row(static_cast<size_t>(p.keys()));
            for (int64_t i = 0; i < std::min(runs, s.top); ++i)
                for (int64_t j = 0; j < s.block; ++j)
                    if (const int64_t key = int64_t(order[size_t(i)]) * s.block + j; key < visible)
                        row[size_t(key)] = true;
            flags.insert(flags.end(), row.begin(), row.end());
        }
    return flags;
}

std::vector<IndexProblem> index_problems() {
    std::vector<IndexProblem> list;
    for (const KvType type : {KvType::f32, KvType::bf16}) {
        list.emplace_back(IndexShape{.heads = 5, .dim = 24, .type = type, .scale = 0.2f, .top = 16}, 200);
        list.emplace_back(IndexShape{.heads = 4, .dim = 16, .type = type, .scale = 0.25f, .top = 7, .rate = 4}, 150);
        list.emplace_back(
            IndexShape{.heads = 2, .dim = 16, .type = type, .top = 3, .weighted = false, .block = 4, .local = 1}, 130);
        list.emplace_back(
            IndexShape{.heads = 3, .dim = 8, .type = type, .top = 2, .weighted = false, .block = 70, .local = 2}, 300);
    }
    return list;
}

TEST(Indexer, TheReferenceEqualsASortOfScores) {
    ThreadPool pool(2);
    for (const IndexProblem& p : index_problems())
        EXPECT_EQ(choose(index_kernels().back(), p, 64, pool), expected_choice(p));
}

TEST(Indexer, EveryEntryAndChunkingGivesTheSameChoice) {
    ThreadPool pool(2), one(1);
    for (const IndexProblem& p : index_problems()) {
        const auto want = choose(index_kernels().back(), p, p.tokens, pool);
        for (const IndexKernels& kernels : index_kernels()) {
            if (!kernels.supported()) continue;
            for (const int64_t chunk : {int64_t{1}, int64_t{7}, p.tokens})
                EXPECT_EQ(choose(kernels, p, chunk, chunk == 7 ? one : pool), want) << kernels.name << " " << chunk;
        }
    }
}

TEST(Indexer, EqualScoresChooseTheLowerPosition) {
    ThreadPool pool(1);
    IndexProblem p({.heads = 1, .dim = 4, .top = 3}, 100);
    std::fill(p.q.begin(), p.q.end(), 0.0f);
    for (const IndexKernels& kernels : index_kernels()) {
        if (!kernels.supported()) continue;
        const auto flags = choose(kernels, p, 100, pool);
        for (int64_t key = 0; key < 100; ++key) EXPECT_EQ(flags[size_t(99 * 100 + key)], key < 3) << kernels.name;
    }
}

// Attention of `heads` query heads over the chosen keys.
struct ChosenAttention {
    AttentionShape shape;
    int64_t tokens = 150, words = choice_words(tokens);
    int groups = 1;
    std::vector<float> q, k, v, sinks;
    std::vector<uint64_t> bits;

    ChosenAttention(const KvShape& kv, int heads, int choices, bool with_sinks)
        : shape{.kv = kv, .heads = heads, .scale = 0.3f},
          groups(choices),
          q(index_numbers(tokens * heads * kv.k_dim, 4)),
          k(index_numbers(tokens * kv.heads * kv.k_dim, 5)),
          v(index_numbers(tokens * kv.heads * kv.v_dim, 6)),
          sinks(index_numbers(heads, 7)),
          bits(static_cast<size_t>(tokens * groups * words)) {
        if (with_sinks) shape.sinks = sinks.data();
        std::mt19937 random(8);
        for (int64_t r = 0; r < tokens * groups; ++r)  // the own key and one of 13 others; some tiles have none
            for (int64_t s = 0; s <= r / groups; ++s)
                if (s == r / groups || (random() % 13 == 0 && s / 64 != r % 3))
                    bits[size_t(r * words + s / 64)] |= uint64_t{1} << (s % 64);
    }
    bool sees(int64_t t, int kv_head, int64_t s) const {
        const int64_t group = int64_t{kv_head} * groups / shape.kv.heads;
        return bits[size_t((t * groups + group) * words + s / 64)] >> (s % 64) & 1;
    }
    std::vector<float> run(const AttentionKernels& kernels, int64_t chunk, ThreadPool& pool) const {
        const KvShape& kv = shape.kv;
        const int64_t q_cols = int64_t{shape.heads} * kv.k_dim, y_cols = int64_t{shape.heads} * kv.v_dim;
        IndexPages pages(words, kv_page_bytes(kv));
        std::vector<float> y(static_cast<size_t>(tokens * y_cols), NAN);
        for (int64_t at = 0; at < tokens; at += chunk) {
            const int64_t rows = std::min(chunk, tokens - at), k_cols = int64_t{kv.heads} * kv.k_dim,
                          v_cols = int64_t{kv.heads} * kv.v_dim;
            kv_store(kv, pages.table.data(), at, rows, k.data() + at * k_cols, k_cols, v.data() + at * v_cols, v_cols);
            AttentionJob job{q.data() + at * q_cols, y.data() + at * y_cols, q_cols, y_cols, rows, at,
                             pages.table.data()};
            job.chosen = bits.data() + at * groups * words;
            job.chosen_words = words, job.chosen_groups = groups;
            kernels.attend(shape, {&job, 1}, pool);
        }
        return y;
    }
};

std::vector<ChosenAttention> chosen_problems() {
    std::vector<ChosenAttention> list;
    list.emplace_back(KvShape{2, 24, 16, KvType::f32}, 2, 1, false);
    list.emplace_back(KvShape{2, 16, 16, KvType::f32}, 8, 2, true);
    list.emplace_back(KvShape{1, 16, 20, KvType::bf16}, 5, 1, true);
    return list;
}

TEST(ChosenKeys, TheReferenceEqualsASoftmaxOverTheChosenKeys) {
    ThreadPool pool(2);
    for (const ChosenAttention& p : chosen_problems()) {
        const KvShape& kv = p.shape.kv;
        const std::vector<float> y = p.run(attention_kernels().back(), 50, pool);
        for (int64_t t = 0; t < p.tokens; ++t)
            for (int h = 0; h < p.shape.heads; ++h) {
                const int kv_head = h / (p.shape.heads / kv.heads);
                double sum = p.shape.sinks ? std::exp(double{p.sinks[size_t(h)]}) : 0;
                std::vector<double> mean(static_cast<size_t>(kv.v_dim));
                for (int64_t s = 0; s <= t; ++s) {
                    if (!p.sees(t, kv_head, s)) continue;
                    double dot = 0;
                    for (int d = 0; d < kv.k_dim; ++d)
                        dot += double{p.q[size_t((t * p.shape.heads + h) * kv.k_dim + d)]} *
                               p.k[size_t((s * kv.heads + kv_head) * kv.k_dim + d)];
                    const double weight = std::exp(dot * double{p.shape.scale});
                    sum += weight;
                    for (int d = 0; d < kv.v_dim; ++d)
                        mean[size_t(d)] += weight * p.v[size_t((s * kv.heads + kv_head) * kv.v_dim + d)];
                }
                for (int d = 0; d < kv.v_dim; ++d)
                    ASSERT_NEAR(y[size_t((t * p.shape.heads + h) * kv.v_dim + d)], mean[size_t(d)] / sum, 1e-5);
            }
    }
}

TEST(ChosenKeys, EveryEntryAndChunkingGivesTheSameBits) {
    ThreadPool pool(2), one(1);
    for (const ChosenAttention& p : chosen_problems()) {
        const std::vector<float> want = p.run(attention_kernels().back(), p.tokens, pool);
        for (const AttentionKernels& kernels : attention_kernels()) {
            if (!kernels.supported()) continue;
            for (const int64_t chunk : {int64_t{1}, int64_t{33}, p.tokens}) {
                const std::vector<float> got = p.run(kernels, chunk, chunk == 33 ? one : pool);
                EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
                    << kernels.name << " " << chunk;
            }
        }
    }
}

}  // namespace
}  // namespace nibble
