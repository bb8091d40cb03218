#include "model/cpu/attend_backward.h"

#include "kernels/unpack.h"
#include "model/cpu/attend.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

namespace nibble {
namespace {

constexpr int64_t tile = 128;

// K and V rows of one head in the precision in which attention reads them from the cache, adjacent.
struct CachedRows {
    CachedRows(const KvShape& shape, const float* k_rows, int64_t k_stride, const float* v_rows, int64_t v_stride,
               int64_t rows) {
        KvShape one = shape;
        one.heads = 1;
        std::vector<std::byte> page(static_cast<size_t>(kv_page_bytes(one)));
        std::byte* const pages[] = {page.data()};
        k.resize(static_cast<size_t>(rows * one.k_dim)), v.resize(static_cast<size_t>(rows * one.v_dim));
        for (int64_t at = 0; at < rows; at += kv_page_tokens) {
            const int64_t n = std::min(kv_page_tokens, rows - at);
            kv_store(one, pages, 0, n, k_rows + at * k_stride, k_stride, v_rows + at * v_stride, v_stride);
            for (int64_t i = 0; i < n; ++i)
                kv_load(one, pages, i, k.data() + (at + i) * one.k_dim, v.data() + (at + i) * one.v_dim);
        }
    }
    std::vector<float> k, v;
};

// Keys and values of one head of one text, packed for the products.
struct KeyTiles {
    std::vector<PackedMatrix> k, k_t, v;
};

// The backward pass of one text and one K/V head. Every product runs on the current thread.
class HeadBackward {
public:
    HeadBackward(const AttentionShape& shape, const AttentionRows& rows, const QueryRows& queries, int64_t first_row,
                 int64_t tokens, int64_t kv_head, Workspace& work)
        : shape_(shape),
          r_(rows),
          q_(queries),
          row_(first_row),
          tokens_(tokens),
          head_(kv_head),
          work_(work),
          p_(static_cast<size_t>(tile * tokens)),
          dp_(p_.size()),
          turned_(tile * tile),
          sum_(static_cast<size_t>(tile * std::max(shape.kv.k_dim, shape.kv.v_dim))) {}

    void run() {
        const int64_t k_dim = shape_.kv.k_dim, v_dim = shape_.kv.v_dim;
        for (int64_t at = 0; at < tokens_; at += tile) {
            const int64_t n = std::min(tile, tokens_ - at);
            const float *k = r_.k + (row_ + at) * r_.k_stride + head_ * k_dim,
                        *v = r_.v + (row_ + at) * r_.v_stride + head_ * v_dim;
            int64_t k_stride = r_.k_stride, v_stride = r_.v_stride;
            std::optional<CachedRows> cached;
            if (rounds()) {
                cached.emplace(shape_.kv, k, k_stride, v, v_stride, n);
                k = cached->k.data(), v = cached->v.data(), k_stride = k_dim, v_stride = v_dim;
            }
            keys_.k.push_back(pack_rows(k, n, k_dim, k_stride, *work_.pool));
            keys_.k_t.push_back(pack_transposed(k, n, k_dim, k_stride, *work_.pool));
            keys_.v.push_back(pack_rows(v, n, v_dim, v_stride, *work_.pool));
            for (int64_t i = 0; i < n; ++i) {
                std::fill_n(dk(at + i), k_dim, 0.0f);
                std::fill_n(dv(at + i), v_dim, 0.0f);
            }
        }
        const int64_t group = shape_.heads / shape_.kv.heads;
        for (int64_t h = head_ * group; h < (head_ + 1) * group; ++h)
            for (int64_t at = 0; at < tokens_; at += tile) queries(h, at, std::min(tile, tokens_ - at));
        if (shape_.kv.type == KvType::fp8) clear_clipped();
    }

private:
    // Returns true if the cache rounds. Values are BF16 already for a BF16 cache, and an FP32 cache stores all of FP32.
    bool rounds() const { return shape_.kv.type != KvType::f32 && shape_.kv.type != KvType::bf16; }
    static void clear(const float* x, int64_t n, float most, float* d) {
        for (int64_t i = 0; i < n; ++i)
            if (std::abs(x[i]) > most) d[i] = 0;
    }
    void clear_clipped() {
        const KvShape& kv = shape_.kv;
        for (int64_t t = 0; t < tokens_; ++t) {
            clear(r_.k + (row_ + t) * r_.k_stride + head_ * kv.k_dim, kv.k_dim, 448 * kv.k_scale, dk(t));
            clear(r_.v + (row_ + t) * r_.v_stride + head_ * kv.v_dim, kv.v_dim, 448 * kv.v_scale, dv(t));
        }
    }
    float* dk(int64_t t) const { return r_.dk + (row_ + t) * r_.k_stride + head_ * shape_.kv.k_dim; }
    float* dv(int64_t t) const { return r_.dv + (row_ + t) * r_.v_stride + head_ * shape_.kv.v_dim; }
    void product(const PackedMatrix& w, const float* x, int64_t rows, int64_t stride, float* y, int64_t y_stride) {
        work_.matmul->matmul(w, {.x = x, .rows = rows, .stride = stride}, {y, y_stride}, *work_.pool);
    }
    // Adds to the rows of `to` the product of (columns [from, from + keys) of `weights`, transposed) and the rows
    // packed in `right`.
    void add_product(const float* weights, int64_t from, int64_t keys, int64_t n, const PackedMatrix& right, float* to,
                     int64_t to_stride) {
        for (int64_t j = 0; j < keys; ++j)
            for (int64_t i = 0; i < n; ++i) turned_[j * n + i] = weights[i * tokens_ + from + j];
        product(right, turned_.data(), keys, n, sum_.data(), right.rows());
        for (int64_t j = 0; j < keys; ++j)
            work_.elementwise->add(sum_.data() + j * right.rows(), right.rows(), false, to + j * to_stride);
    }

    // Processes queries [at, at + n) of head h.
    void queries(int64_t h, int64_t at, int64_t n) {
        const int64_t k_dim = shape_.kv.k_dim, v_dim = shape_.kv.v_dim, dy_stride = shape_.heads * v_dim;
        const float* q = q_.x + (row_ + at) * q_.stride + h * k_dim;
        const float* dy = r_.dy + (row_ + at) * dy_stride + h * v_dim;
        float* dq = r_.dq + (row_ + at) * r_.q_stride + h * k_dim;
        const int64_t end = at + n;
        const int64_t begin = shape_.first_visible(at) / tile * tile;
        for (int64_t j = begin; j < end; j += tile) {
            product(keys_.k[j / tile], q, n, q_.stride, p_.data() + j, tokens_);
            product(keys_.v[j / tile], dy, n, dy_stride, dp_.data() + j, tokens_);
        }
        for (int64_t i = 0; i < n; ++i) {
            float *p = p_.data() + i * tokens_, *dp = dp_.data() + i * tokens_;
            const int64_t last = at + i + 1;
            const int64_t first = shape_.first_visible(last - 1);
            for (int64_t j = first; j < last; ++j) p[j] *= shape_.scale;
            work_.gradient->softmax(p + first, last - first, p + first);
            work_.gradient->softmax_backward(p + first, dp + first, last - first, shape_.scale, dp + first);
            for (float* row : {p, dp}) {
                std::fill(row + begin, row + first, 0.0f);
                std::fill(row + last, row + end, 0.0f);
            }
        }
        const PackedMatrix q_t = pack_transposed(q, n, k_dim, q_.stride, *work_.pool);
        const PackedMatrix dy_t = pack_transposed(dy, n, v_dim, dy_stride, *work_.pool);
        for (int64_t i = 0; i < n; ++i) std::fill_n(dq + i * r_.q_stride, k_dim, 0.0f);
        for (int64_t j = begin; j < end; j += tile) {
            const int64_t keys = std::min(tile, tokens_ - j);
            product(keys_.k_t[j / tile], dp_.data() + j, n, tokens_, sum_.data(), k_dim);
            for (int64_t i = 0; i < n; ++i)
                work_.elementwise->add(sum_.data() + i * k_dim, k_dim, false, dq + i * r_.q_stride);
            add_product(p_.data(), j, keys, n, dy_t, dv(j), r_.v_stride);
            add_product(dp_.data(), j, keys, n, q_t, dk(j), r_.k_stride);
        }
        if (const float scale = shape_.kv.q_scale; scale > 0)
            for (int64_t i = 0; i < n; ++i)
                clear(r_.q + (row_ + at + i) * r_.q_stride + h * k_dim, k_dim, 448 * scale, dq + i * r_.q_stride);
    }

    const AttentionShape& shape_;
    const AttentionRows& r_;
    const QueryRows q_;  // in the precision in which they were multiplied with K
    const int64_t row_, tokens_, head_;
    Workspace& work_;
    KeyTiles keys_;
    std::vector<float> p_, dp_;  // [tile, tokens]
    std::vector<float> turned_, sum_;
};

}  // namespace

void attend_backward(const Batch& batch, const AttentionShape& shape, const AttentionRows& rows, Workspace& work) {
    const Arena::Scope scope(work.arena);
    const QueryRows queries = read_queries(shape, {rows.q, rows.q_stride}, batch.rows(), work);
    const int64_t heads = shape.kv.heads;
    work.pool->parallel_for(static_cast<int64_t>(batch.segments().size()) * heads, [&](int64_t job) {
        const auto segment = static_cast<size_t>(job / heads);
        HeadBackward(shape, rows, queries, batch.row(segment),
                     static_cast<int64_t>(batch.segments()[segment].tokens.size()), job % heads, work)
            .run();
    });
}

}  // namespace nibble
