// Head norms, rotary embedding, keys and values into the cache: a warp per token and head, queries, then keys, then
// values.
#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/kv_store.cuh"

namespace nibble::cuda {

// value(d) rotated where d lies in [first, first + dims).
template <class Value>
__device__ uint16_t rotated(const RotaryArgs& rope, int first, int64_t token, int d, Value value) {
    const float x = value(d);
    const int rel = d - first, half = rope.dims / 2;
    if (rel < 0 || rel >= rope.dims) return bf16_from_float(x);
    const bool second = rope.interleaved ? rel % 2 : rel >= half;
    const int pair = rope.interleaved ? rel / 2 : second ? rel - half : rel, apart = rope.interleaved ? 1 : half;
    const float other = value(second ? d - apart : d + apart);
    const int64_t angle = int64_t{rope.positions[token]} * half + pair;
    const float c = rope.cos[angle], s = rope.sin[angle];
    return bf16_from_float(second ? fmaf(x, c, other * s) : fmaf(x, c, -(other * s)));
}

// norm_scale() of a head's BF16 values, straight from memory.
__device__ inline float head_scale(const float* x, int dim, float eps, int lane) {
    float sum = 0.0f;
    for (int j = lane % sum_lanes; j < dim; j += sum_lanes) {
        const float v = rounded(x[j]);
        sum = fmaf(v, v, sum);
    }
#pragma unroll
    for (int half = sum_lanes / 2; half > 0; half /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, half);
    return 1.0f / sqrtf(sum / static_cast<float>(dim) + eps);
}

inline constexpr int head_elements = 4;  // of a lane at a time

// One of tokens * (q_heads + 2 * kv_heads). What depends on the batch alone is read first, run() waits for little else:
// its loads are on their way before the first is used.
class RopeItem {
public:
    __device__ RopeItem(const RopeArgs& rope, int64_t item) : args_(rope), lane_(static_cast<int>(threadIdx.x) % 32) {
        const CacheArgs& cache = args_.cache;
        const int heads = args_.q_heads + 2 * cache.kv_heads;
        token_ = item / heads;
        head_ = static_cast<int>(item % heads);
        if (const int half = args_.rotary.dims / 2; half > 0) {
            angles_ = int64_t{args_.rotary.positions[token_]} * half;
            for (int i = 32 * lane_; i < half; i += 32 * 32) {
                asm volatile("prefetch.global.L2 [%0];" ::"l"(args_.rotary.cos + angles_ + i));
                asm volatile("prefetch.global.L2 [%0];" ::"l"(args_.rotary.sin + angles_ + i));
            }
        }
        if (head_ < args_.q_heads) return;
        const int64_t slot = args_.slots[token_];
        exists_ = slot >= 0;
        if (exists_) tile_ = CacheTile(cache, (head_ - args_.q_heads) % cache.kv_heads, slot);
    }
    __device__ void run() const {
        if (!exists_) return;
        const CacheArgs& cache = args_.cache;
        const int dim = cache.dims.k, keys = args_.q_heads + cache.kv_heads;
        const float* row = args_.qkv + token_ * args_.qkv_stride;
        uint16_t e[head_elements];
        if (head_ >= keys) {
            const float* x = row + keys * dim + (head_ - keys) * cache.dims.v;
            for (int first = 0; first < cache.padded.v; first += 32 * head_elements) {
                float v[head_elements];
                each(first, cache.dims.v, [&](int i, int d) { v[i] = x[d]; });
                each(first, cache.dims.v, [&](int i, int) { e[i] = bf16_from_float(v[i]); });
                tile_.store_v(cache, first + lane_, e);
            }
            return;
        }
        const float* x = row + head_ * dim;
        const float* norm = head_ < args_.q_heads ? args_.q_norm : args_.k_norm;
        const float scale = norm ? head_scale(x, dim, args_.eps, lane_) : 1.0f;
        const bool key = head_ >= args_.q_heads;
        uint16_t* q = args_.q + (token_ * args_.q_heads + head_) * dim;
        for (int first = 0; first < (key ? cache.padded.k : dim); first += 32 * head_elements) {
            rotate(x, norm, scale, first, e);
            if (key)
                tile_.store_k(cache, first + lane_, e);
            else
                each(first, dim, [&](int i, int d) { q[d] = e[i]; });
        }
    }

private:
    template <class Each>
    __device__ void each(int first, int dim, Each visit) const {
#pragma unroll
        for (int i = 0; i < head_elements; ++i)
            if (const int d = first + lane_ + 32 * i; d < dim) visit(i, d);
    }
    __device__ void rotate(const float* x, const float* norm, float scale, int first,
                           uint16_t (&e)[head_elements]) const {
        const RotaryArgs& rope = args_.rotary;
        const int dim = args_.cache.dims.k, half = rope.dims / 2;
        float own[head_elements], other[head_elements] = {}, c[head_elements] = {}, s[head_elements] = {};
        float own_norm[head_elements] = {}, other_norm[head_elements] = {};
        const auto second = [&](int d) { return rope.interleaved ? d % 2 == 1 : d >= half; };
        each(first, dim, [&](int i, int d) {
            own[i] = x[d];
            if (norm) own_norm[i] = norm[d];
            if (d >= rope.dims) return;
            const int apart = rope.interleaved ? 1 : half, partner = second(d) ? d - apart : d + apart;
            const int64_t angle = angles_ + (rope.interleaved ? d / 2 : second(d) ? d - half : d);
            other[i] = x[partner];
            if (norm) other_norm[i] = norm[partner];
            c[i] = rope.cos[angle], s[i] = rope.sin[angle];
        });
        const auto value = [&](float v, float w) { return norm ? rounded((rounded(v) * scale) * w) : rounded(v); };
        each(first, dim, [&](int i, int d) {
            const float v = value(own[i], own_norm[i]), u = value(other[i], other_norm[i]);
            e[i] = bf16_from_float(d >= rope.dims ? v
                                   : second(d)    ? fmaf(v, c[i], u * s[i])
                                                  : fmaf(v, c[i], -(u * s[i])));
        });
    }

    const RopeArgs& args_;
    int lane_, head_;
    int64_t token_, angles_ = 0;
    bool exists_ = true;
    CacheTile tile_;
};

}  // namespace nibble::cuda
