// Between the projections and attention: head norms, rotary embedding, keys and values into the cache. A warp per token
// and head: queries, then keys, then values.
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/kv_store.cuh"

namespace nibble::cuda {
namespace {

constexpr int warps = 4;

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
__device__ float head_scale(const float* x, int dim, float eps, int lane) {
    float sum = 0.0f;
    for (int j = lane % sum_lanes; j < dim; j += sum_lanes) {
        const float v = rounded(x[j]);
        sum = fmaf(v, v, sum);
    }
#pragma unroll
    for (int half = sum_lanes / 2; half > 0; half /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, half);
    return 1.0f / sqrtf(sum / static_cast<float>(dim) + eps);
}

__global__ void rope_kernel(const __grid_constant__ RopeArgs args) {
    start(args.overlap);
    const CacheArgs& cache = args.cache;
    const int heads = args.q_heads + 2 * cache.kv_heads, dim = cache.dims.k;
    const int64_t item = int64_t{blockIdx.x} * warps + threadIdx.x / 32;
    if (item >= args.tokens * heads) return;
    const int64_t token = item / heads;
    const int head = static_cast<int>(item % heads), lane = static_cast<int>(threadIdx.x) % 32;
    const float* row = args.qkv + token * args.qkv_stride;
    const int64_t slot = head < args.q_heads ? 0 : args.slots[token];
    if (slot < 0) return;
    if (head >= args.q_heads + cache.kv_heads) {
        const int v_head = head - args.q_heads - cache.kv_heads;
        const float* x = row + (args.q_heads + cache.kv_heads) * dim + v_head * cache.dims.v;
        return store_v(cache, v_head, slot, lane, [&](int d) { return bf16_from_float(x[d]); });
    }
    const float* x = row + head * dim;
    const float* norm = head < args.q_heads ? args.q_norm : args.k_norm;
    const float scale = norm ? head_scale(x, dim, args.eps, lane) : 1.0f;
    const auto value = [&](int d) {
        const float v = rounded(x[d]);
        return norm ? rounded((v * scale) * norm[d]) : v;
    };
    const auto element = [&](int d) { return rotated(args.rotary, 0, token, d, value); };
    if (head >= args.q_heads) return store_k(cache, head - args.q_heads, slot, lane, element);
    uint16_t* q = args.q + (token * args.q_heads + head) * dim;
    for (int d = lane; d < dim; d += 32) q[d] = element(d);
}

__global__ void latent_kernel(const __grid_constant__ LatentArgs args) {
    start(args.overlap);
    const CacheArgs& cache = args.cache;
    const int heads = cache.kv_heads, dim = cache.dims.k, both = args.nope + cache.dims.v;
    const int64_t item = int64_t{blockIdx.x} * warps + threadIdx.x / 32;
    if (item >= args.tokens * 3 * heads) return;
    const int64_t token = item / (3 * heads);
    const int which = static_cast<int>(item / heads % 3), head = static_cast<int>(item % heads);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (which == 0) {
        const float* x = args.q_in + token * args.q_stride + head * dim;
        uint16_t* q = args.q + (token * heads + head) * dim;
        for (int d = lane; d < dim; d += 32)
            q[d] = rotated(args.rotary, args.nope, token, d, [&](int i) { return rounded(x[i]); });
        return;
    }
    const int64_t slot = args.slots[token];
    if (slot < 0) return;
    const float* kv = args.kv + (token * heads + head) * both;
    if (which == 2) {
        store_v(cache, head, slot, lane, [&](int d) { return bf16_from_float(kv[args.nope + d]); });
    } else {
        const float* shared = args.shared + token * args.shared_stride;
        const auto value = [&](int d) { return rounded(d < args.nope ? kv[d] : shared[d - args.nope]); };
        store_k(cache, head, slot, lane, [&](int d) { return rotated(args.rotary, args.nope, token, d, value); });
    }
}

__global__ void append_kernel(const __grid_constant__ AppendArgs args) {
    start(args.overlap);
    const CacheArgs& cache = args.cache;
    const int64_t item = int64_t{blockIdx.x} * warps + threadIdx.x / 32;
    if (item >= args.tokens * cache.kv_heads) return;
    const int64_t slot = args.slots[item / cache.kv_heads];
    const int head = static_cast<int>(item % cache.kv_heads), lane = static_cast<int>(threadIdx.x) % 32;
    if (slot < 0) return;
    store_k(cache, head, slot, lane, [&](int d) { return args.k[item * cache.dims.k + d]; });
    store_v(cache, head, slot, lane, [&](int d) { return args.v[item * cache.dims.v + d]; });
}

}  // namespace

cudaError_t launch_rope(const RopeArgs& args, cudaStream_t stream) {
    const int64_t items = args.tokens * (args.q_heads + 2 * args.cache.kv_heads);
    return launch_kernel(rope_kernel, dim3(ceil_blocks(items, warps)), 32 * warps, 0, args, stream);
}

cudaError_t launch_latent(const LatentArgs& args, cudaStream_t stream) {
    const int64_t items = args.tokens * 3 * args.cache.kv_heads;
    return launch_kernel(latent_kernel, dim3(ceil_blocks(items, warps)), 32 * warps, 0, args, stream);
}

cudaError_t launch_append(const AppendArgs& args, cudaStream_t stream) {
    if (args.tokens == 0) return cudaSuccess;
    return launch_kernel(append_kernel, dim3(ceil_blocks(args.tokens * args.cache.kv_heads, warps)), 32 * warps, 0,
                         args, stream);
}

}  // namespace nibble::cuda
