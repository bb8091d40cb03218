// Operations between the projections and attention: head norms, rotary embedding, writing keys and values to the cache.
// One warp per token and head: queries, then keys, then values.
#include "kernels/cuda/primitives/rope.cuh"

namespace nibble::cuda {
namespace {

constexpr int warps = 4;

__global__ void rope_append_kernel(const __grid_constant__ RopeArgs args) {
    start(args.overlap);
    const int head = static_cast<int>(blockIdx.y * warps + threadIdx.x / 32);
    if (head < args.q_heads + 2 * args.cache.kv_heads) rope_item(args, blockIdx.x, head);
}

__global__ void latent_append_kernel(const __grid_constant__ LatentArgs args) {
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
        const float factor = args.query_period > 0
                                 ? query_factor(args.query_beta, args.query_period, 0, args.rotary.positions[token])
                                 : 1.0f;
        for (int d = lane; d < dim; d += 32) {
            const uint16_t turned = rotated(args.rotary, args.nope, token, d, [&](int i) { return rounded(x[i]); });
            q[d] = bf16_from_float(bf16_to_float(turned) * factor);
        }
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

__global__ void kv_append_kernel(const __grid_constant__ AppendArgs args) {
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
    if (const cudaError_t code = prefer_shared_memory(rope_append_kernel)) return code;
    const dim3 blocks(static_cast<unsigned>(args.tokens), ceil_blocks(args.q_heads + 2 * args.cache.kv_heads, warps));
    return launch_kernel(rope_append_kernel, blocks, 32 * warps, 0, args, stream);
}

cudaError_t launch_latent(const LatentArgs& args, cudaStream_t stream) {
    const int64_t items = args.tokens * 3 * args.cache.kv_heads;
    return launch_kernel(latent_append_kernel, dim3(ceil_blocks(items, warps)), 32 * warps, 0, args, stream);
}

cudaError_t launch_append(const AppendArgs& args, cudaStream_t stream) {
    if (args.tokens == 0) return cudaSuccess;
    return launch_kernel(kv_append_kernel, dim3(ceil_blocks(args.tokens * args.cache.kv_heads, warps)), 32 * warps, 0,
                         args, stream);
}

}  // namespace nibble::cuda
