// Rotary embedding of BF16 rows: writes queries, keys and values as separate rows, or keys and values to the cache.
#include "kernels/cuda/primitives/rope_team.cuh"

namespace nibble::cuda {
namespace {

// Writes columns column ... column + V - 1 of a key.
template <int V>
__device__ void store_key(const CacheArgs& c, int head, uint8_t* tile, int t, int column, const float (&x)[V]) {
    uint8_t* at = tile + k_offset(c.type, t, column);
    if constexpr (V == 8)
        if (c.type == KvType::bf16) return pack8(reinterpret_cast<std::byte*>(at), x);
    for (int i = 0; i < V; ++i)  // adjacent codes stay adjacent
        store_element(c.type, at + i, bf16_from_float(x[i]), c.k_scales, head);
}

// One team per token and head: queries, then keys, then values if they become rows too.
template <class Team, bool Cached>
__global__ void __launch_bounds__(rope_threads) rope_rows_kernel(const __grid_constant__ RopeRowsArgs args) {
    constexpr int V = Team::v;
    start(args.overlap);
    const RopeArgs& r = args.rope;
    const CacheArgs& cache = r.cache;
    const int dim = cache.dims.k, turned = r.q_heads + cache.kv_heads, heads = turned + (Cached ? 0 : cache.kv_heads);
    const auto items = static_cast<uint32_t>(r.tokens * heads);
    const uint32_t team = blockIdx.x * Team::in_block + threadIdx.x / Team::lanes, item = min(team, items - 1);
    const int64_t token = item / static_cast<uint32_t>(heads);
    const int head = static_cast<int>(item % static_cast<uint32_t>(heads)), kv_head = head - r.q_heads;
    const uint16_t* row = args.qkv + token * r.qkv_stride + head * dim;
    const float* norm = head < r.q_heads ? r.q_norm : head < turned ? r.k_norm : nullptr;
    const float scale = r.q_norm || r.k_norm ? team_scale<Team>(row, dim, r.eps) : 1.0f;
    if (team >= items) return;
    const int64_t slot = Cached && kv_head >= 0 ? r.slots[token] : 0;
    if (slot < 0) return;
    uint8_t* tile = Cached && kv_head >= 0 ? tile_of_slot(cache, kv_head, slot) : nullptr;
    const int t = static_cast<int>(slot) % kv_tile_tokens;  // pages are whole tiles
    Team::visit(dim, [&](int, int at) {
        RopePart<V> part(r.rotary, at);
        part.load(row);
        if (norm) part.visit([&](int column, float& x, int) { x = rounded((x * scale) * norm[column]); });
        if (head < turned) part.turn(r.rotary, token, 1.0f);
        if (kv_head < 0) {
            part.store(r.q + (token * r.q_heads + head) * dim);
        } else if constexpr (Cached) {
            store_key<V>(cache, kv_head, tile, t, part.low, part.x[0]);
            store_key<V>(cache, kv_head, tile, t, part.high, part.x[1]);
        } else {
            const int64_t rows = token * cache.kv_heads + kv_head;
            part.store(head < turned ? args.k + rows * dim : args.v + (rows - cache.kv_heads) * dim);
        }
    });
    if (!tile) return;
    const float zeros[V] = {};
    for (int column = dim + V * static_cast<int>(threadIdx.x % Team::lanes); column < cache.padded.k;
         column += V * Team::lanes)
        store_key<V>(cache, kv_head, tile, t, column, zeros);
}

constexpr int value_threads = 128, quad = 4;

// Writes values to the cache. A thread block has four tokens; a thread has two dimensions of a head for each, 16 bytes
// of a tile if the tokens are adjacent in it.
__global__ void __launch_bounds__(value_threads) rope_rows_values_kernel(const __grid_constant__ RopeRowsArgs args) {
    start(args.overlap);
    const RopeArgs& r = args.rope;
    const CacheArgs& c = r.cache;
    const int64_t first = int64_t{blockIdx.x} * quad;
    int64_t slot[quad];
#pragma unroll
    for (int i = 0; i < quad; ++i) slot[i] = first + i < r.tokens ? r.slots[first + i] : -1;
    bool together = c.type == KvType::bf16 && slot[0] >= 0 && slot[0] % quad == 0;
#pragma unroll
    for (int i = 1; i < quad; ++i) together = together && slot[i] == slot[0] + i;
    const int pairs = c.padded.v / 2;
    for (int unit = static_cast<int>(threadIdx.x); unit < pairs * c.kv_heads; unit += value_threads) {
        const int head = unit / pairs, d = unit % pairs * 2;
        const uint16_t* x = args.qkv + first * r.qkv_stride + (r.q_heads + c.kv_heads) * c.dims.k + head * c.dims.v + d;
        uint32_t v[quad];
#pragma unroll
        for (int i = 0; i < quad; ++i)
            v[i] = slot[i] >= 0 && d < c.dims.v ? *reinterpret_cast<const uint32_t*>(x + i * r.qkv_stride) : 0;
        const auto place = [&](int64_t at, int dimension) {
            return tile_of_slot(c, head, at) + k_tile_bytes(c.type, c.padded) +
                   v_offset(c.type, static_cast<int>(at) % kv_tile_tokens, dimension);
        };
        if (together) {
            *reinterpret_cast<uint4*>(place(slot[0], d)) = {
                __byte_perm(v[0], v[1], 0x5410), __byte_perm(v[2], v[3], 0x5410), __byte_perm(v[0], v[1], 0x7632),
                __byte_perm(v[2], v[3], 0x7632)};
            continue;
        }
#pragma unroll
        for (int i = 0; i < quad; ++i)
            for (int e = 0; slot[i] >= 0 && e < 2; ++e)
                store_element(c.type, place(slot[i], d + e), static_cast<uint16_t>(v[i] >> 16 * e), c.v_scales, head);
    }
}

}  // namespace

cudaError_t launch_rope_rows(const RopeRowsArgs& args, cudaStream_t stream) {
    const RopeArgs& r = args.rope;
    const bool cached = !args.k;
    const int64_t items = r.tokens * (r.q_heads + (cached ? 1 : 2) * r.cache.kv_heads);
    const cudaError_t code = with_rope_team(r.cache.dims.k, r.rotary.dims, [&]<class Team>(Team) {
        return launch_kernel(cached ? rope_rows_kernel<Team, true> : rope_rows_kernel<Team, false>,
                             dim3(ceil_blocks(items, Team::in_block)), rope_threads, 0, args, stream);
    });
    if (code != cudaSuccess || !cached) return code;
    return launch_kernel(rope_rows_values_kernel, dim3(ceil_blocks(r.tokens, quad)), value_threads, 0, args, stream);
}

}  // namespace nibble::cuda
