// Head norms, rotary embedding, and writing keys and values to the cache: one warp per token and head, queries, then
// keys, then values.
#pragma once

#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/cuda/primitives/kv_store.cuh"

namespace nibble::cuda {

// Returns value(d), rotated if d is in [first, first + dims).
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

// norm_scale() of a head's BF16 values, read directly from memory.
template <class Value>
__device__ float head_scale(const Value& value, int dim, float eps, int lane) {
    float sum = 0.0f;
    for (int j = lane % sum_lanes; j < dim; j += sum_lanes) {
        const float v = value(j);
        sum = fmaf(v, v, sum);
    }
#pragma unroll
    for (int half = sum_lanes / 2; half > 0; half /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, half);
    return 1.0f / sqrtf(sum / static_cast<float>(dim) + eps);
}

// head: below q_heads + 2 * kv_heads.
__device__ inline void rope_item(const RopeArgs& args, int64_t token, int head) {
    const CacheArgs& cache = args.cache;
    const int dim = cache.dims.k, lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t row = token * args.qkv_stride;
    const auto input = [&](int64_t at) { return rounded(args.qkv[row + at]); };
    const int64_t slot = head < args.q_heads ? 0 : args.slots[token];
    if (slot < 0) return;
    if (head >= args.q_heads + cache.kv_heads) {
        const int v_head = head - args.q_heads - cache.kv_heads;
        const int x = (args.q_heads + cache.kv_heads) * dim + v_head * cache.dims.v;
        return store_v(cache, v_head, slot, lane, [&](int d) { return bf16_from_float(input(x + d)); });
    }
    const int x = head * dim;
    const float* norm = head < args.q_heads ? args.q_norm : args.k_norm;
    const float scale = norm ? head_scale([&](int d) { return input(x + d); }, dim, args.eps, lane) : 1.0f;
    const auto value = [&](int d) {
        const float v = input(x + d);
        return norm ? rounded((v * scale) * norm[d]) : v;
    };
    const auto element = [&](int d) { return rotated(args.rotary, 0, token, d, value); };
    if (head >= args.q_heads) return store_k(cache, head - args.q_heads, slot, lane, element);
    uint16_t* q = args.q + (token * args.q_heads + head) * dim;
    for (int d = lane; d < dim; d += 32) q[d] = element(d);
}

}  // namespace nibble::cuda
