#include "kernels/ref/attention_ref.h"

#include "formats/nvfp4.h"
#include "kernels/exp.h"
#include "kernels/kv_page.h"
#include "kernels/soft_cap.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace nibble::ref {
namespace {

struct Softmax {
    float m = -std::numeric_limits<float>::infinity(), l = 0;

    // Converts scores to weights. Returns the factor of earlier sums.
    float tile(float (&s)[kv_page_tokens]) {
        float top = m;
        for (float x : s) top = x > top ? x : top;
        const float a = exp_f32(m - top);
        float lane[16] = {};
        for (int j = 0; j < kv_page_tokens; ++j) {
            s[j] = exp_f32(s[j] - top);
            lane[j % 16] += s[j];
        }
        l = std::fma(l, a, sum16(lane));
        m = top;
        return a;
    }
};

void attend_row(const AttentionShape& shape, const AttentionJob& job, int64_t row, int head, int64_t split) {
    const KvShape& kv = shape.kv;
    const int kv_head = head / (shape.heads / kv.heads);
    const int64_t last = job.position + row, first = shape.first_visible(last);
    const float* q = job.q + row * job.q_stride + int64_t{head} * kv.k_dim;
    float* y = job.y + row * job.y_stride + int64_t{head} * kv.v_dim;
    std::fill(y, y + kv.v_dim, 0.0f);
    Softmax softmax;
    if (shape.sinks) softmax = {shape.sinks[head], 1.0f};
    for (int64_t at = first / split; at <= last / split; ++at) {
        const int64_t tile = at * split / kv_page_tokens, base = tile * kv_page_tokens, from = at * split - base;
        const int64_t begin = std::max(first - base, from), end = std::min(last - base + 1, from + split);
        const uint64_t bits = job.visible_bits(row, kv_head, kv.heads, tile);
        float s[kv_page_tokens];
        std::fill(std::begin(s), std::end(s), -std::numeric_limits<float>::infinity());
        bool any = false;
        for (int64_t j = begin; j < end; ++j) {
            if (!(bits >> j & 1)) continue;
            any = true;
            float dot = 0;
            for (int d = 0; d < kv.k_dim; ++d) dot = std::fma(q[d], kv_k(kv, job.pages[tile], kv_head, d, j), dot);
            s[j] = dot * shape.scale;
            if (shape.cap > 0) s[j] = soft_cap_f32(s[j], shape.cap);
        }
        if (!any) continue;
        const float a = softmax.tile(s);
        for (int d = 0; d < kv.v_dim; ++d) {
            float o = y[d] * a;
            for (int64_t j = begin; j < end; ++j)
                if (bits >> j & 1) o = std::fma(s[j], kv_v(kv, job.pages[tile], kv_head, d, j), o);
            y[d] = o + 0.0f;
        }
    }
    for (int d = 0; d < kv.v_dim; ++d) {
        y[d] /= softmax.l;
        if (shape.bf16) y[d] = round_to_bf16(y[d]);
    }
}

}  // namespace

void attend(const AttentionShape& shape, std::span<const AttentionJob> jobs, ThreadPool& pool) {
    attend_in_splits(shape, jobs, pool, kv_page_tokens);
}

void attend_in_splits(const AttentionShape& shape, std::span<const AttentionJob> jobs, ThreadPool& pool,
                      int64_t split) {
    for (const AttentionJob& job : jobs)
        pool.parallel_for(job.rows * shape.heads, [&](int64_t i) {
            attend_row(shape, job, i / shape.heads, static_cast<int>(i % shape.heads), split);
        });
}

}  // namespace nibble::ref
