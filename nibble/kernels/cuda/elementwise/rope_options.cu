// The steps of rope.cu for models with other norms of queries, keys and values, scales, and layouts of the columns
// (RopeAppend::Options). One warp per token and head: queries, then keys, then values. Per-layer inputs are here too.
#include "kernels/cuda/primitives/rope.cuh"

namespace nibble::cuda {
namespace {

constexpr int option_warps = 4;

__device__ void rope_option_item(const RopeOptionsArgs& args, int64_t token, int head) {
    const RopeArgs& r = args.rope;
    const CacheArgs& cache = r.cache;
    const int dim = cache.dims.k, lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t row = token * r.qkv_stride;
    const auto input = [&](int64_t at) {
        return r.qkv ? rounded(r.qkv[row + at]) : bf16_to_float(args.qkv16[row + at]);
    };
    const bool query = head < r.q_heads;
    const int64_t slot = query ? 0 : r.slots[token];
    if (slot < 0) return;
    if (head >= r.q_heads + args.kv_heads) {
        const int v_head = head - r.q_heads - args.kv_heads, x = args.v_at + v_head * cache.dims.v;
        const auto value = [&](int d) { return input(x + d); };
        const float scale = args.value_norm ? head_scale(value, cache.dims.v, r.eps, lane) : 1.0f;
        return store_v(cache, v_head, slot, lane, [&](int d) {
            float v = value(d);
            if (args.value_norm) v = rounded(v * scale);
            if (args.value_scale != 1.0f) v = v * args.value_scale;
            return bf16_from_float(v);
        });
    }
    const int place = query ? head : head - r.q_heads, x = query ? place * args.q_pitch : args.k_at + place * dim;
    const float* norm = query ? r.q_norm : r.k_norm;
    const auto raw = [&](int d) { return input(x + d); };
    float scale = 1.0f;
    if (norm && args.joined_scales)
        scale = args.joined_scales[2 * token + !query], norm += place * dim;
    else if (norm && !args.late)
        scale = head_scale(raw, dim, r.eps, lane);
    const auto value = [&](int d) {
        const float v = raw(d);
        return norm && !args.late ? rounded((v * scale) * norm[d]) : v;
    };
    const auto turned = [&](int d) { return bf16_to_float(rotated(r.rotary, 0, token, d, value)); };
    if (norm && args.late) scale = head_scale(turned, dim, r.eps, lane);
    const float factor = query && args.query_period > 0 ? query_factor(args.query_beta, args.query_period,
                                                                       args.query_offset, r.rotary.positions[token])
                                                        : 1.0f;
    const auto element = [&](int d) {
        float v = turned(d);
        if (norm && args.late) v = rounded((v * scale) * norm[d]);
        return bf16_from_float(v * factor);
    };
    if (!query) return store_k(cache, place, slot, lane, element);
    uint16_t* q = r.q + (token * r.q_heads + head) * dim;
    for (int d = lane; d < dim; d += 32) q[d] = element(d);
}

__global__ void rope_options_kernel(const __grid_constant__ RopeOptionsArgs args) {
    start(args.overlap);
    const int head = static_cast<int>(blockIdx.y * option_warps + threadIdx.x / 32);
    if (head < args.rope.q_heads + 2 * args.kv_heads) rope_option_item(args, blockIdx.x, head);
}

// One warp per token.
__global__ void per_layer_rows_kernel(const __grid_constant__ PerLayerRowsArgs args) {
    start(args.overlap);
    const int64_t token = int64_t{blockIdx.x} * option_warps + threadIdx.x / 32;
    if (token >= args.tokens) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const float* projected = args.projected + token * args.width;
    const uint16_t* table = args.table + int64_t{args.ids[token]} * args.width;
    const auto value = [&](int d) { return rounded(rounded(projected[d]) * args.root); };
    const float scale = head_scale(value, args.width, args.eps, lane);
    for (int d = lane; d < args.width; d += 32) {
        const float p = rounded(rounded((value(d) * scale) * args.norm[d]) + bf16_to_float(table[d]));
        const float gate = rounded(args.gate[token * args.width + d]);
        args.out[token * args.width + d] =
            bf16_from_float(act(static_cast<int>(Activation::gelu_tanh), gate) * rounded(p * args.half));
    }
}

}  // namespace

cudaError_t launch_rope_options(const RopeOptionsArgs& args, cudaStream_t stream) {
    if (const cudaError_t code = prefer_shared_memory(rope_options_kernel)) return code;
    const dim3 blocks(static_cast<unsigned>(args.rope.tokens),
                      ceil_blocks(args.rope.q_heads + 2 * args.kv_heads, option_warps));
    return launch_kernel(rope_options_kernel, blocks, 32 * option_warps, 0, args, stream);
}

cudaError_t launch_per_layer_rows(const PerLayerRowsArgs& args, cudaStream_t stream) {
    return launch_kernel(per_layer_rows_kernel, dim3(ceil_blocks(args.tokens, option_warps)), 32 * option_warps, 0,
                         args, stream);
}

}  // namespace nibble::cuda
