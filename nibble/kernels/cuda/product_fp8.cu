// W8A8 on the FP8 tensor cores: E4M3 codes of weights and inputs, every number of tokens in one order.
//
// Tokens are the rows of wgmma (64 a warpgroup), rows of W its columns. A chain of four k-steps of 32 columns starts
// from zero in the tensor core, whose sums keep about 14 bits; its result is added to FP32 registers, with the scales
// of its 128 columns, before the next. So every 128 columns are promoted, each output in one sequence, and neither the
// width of a tile nor the number of tokens shows.
//
// Several chains are on their way at once, each with accumulators of its own. (Chains that stay on their way from one
// turn of the loop to the next make the assembler serialize all of them, C7514: 410 instead of 1000 TF.)
//
// Few tokens (up to 64): a thread block has a slice of the rows, so that one wave of blocks reads all of W, in stages
// of several groups of 128 columns. Many: 128 tokens x 128 rows, two thread blocks of a cluster bring half of x each
// for both. One warp fills the ring, the first weights before it waits for the kernel that makes x. Thread blocks stay
// and take tile after tile: the ring fills for the next while the last one's results are stored.
#include "kernels/cuda/product_epilogue.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/cuda/wgmma_codes.cuh"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace nibble::cuda {
namespace {

constexpr int all_bytes = 220 * 1024, group_cols = 128;

// For both thread blocks of a cluster.
__device__ void load_3d_for_both(uint32_t to, const CUtensorMap* map, int x, int y, int z, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(static_cast<uint16_t>(3))
        : "memory");
}

// The tiles of a product: neighbours share weights and tokens, bands of token tiles, then rows.
struct Works {
    static constexpr int band = 8;
    int rows, tokens, row_blocks, token_tiles, count;

    __device__ Works(const ProductArgs& p, int tile_rows, int tile_tokens)
        : rows(tile_rows),
          tokens(tile_tokens),
          row_blocks((p.n + rows - 1) / rows),
          token_tiles((p.tokens + tokens - 1) / tokens),
          count(row_blocks * token_tiles) {}
    // The first token and the first row of tile i.
    __device__ int2 at(int i) const {
        const int first = i / (band * row_blocks) * band, in_band = i % (band * row_blocks);
        const int tiles = min(band, token_tiles - first);
        return {(first + in_band % tiles) * tokens, in_band / tiles * rows};
    }
};

// Warpgroups along tokens (64 each) x along rows (N each).
template <int N, int TokenGroups, int RowGroups, int Cluster>
struct Fp8Shape {
    static constexpr bool many = Cluster > 1;
    static constexpr int rows = N * RowGroups, tokens = 64 * TokenGroups, groups = TokenGroups * RowGroups;
    // At once, as registers allow: 168 for nine warps, 255 for five. A turn waits once for the latency of a chain.
    static constexpr int chains = many ? 2 : N <= 32 || RowGroups == 1 ? 4 : N <= 64 ? 2 : 1;
    // The warp that fills the ring has a whole warpgroup where registers are handed over.
    static constexpr int threads = 128 * groups + (many ? 128 : 32);
    // A stage: x [stage groups][token_rows][128 bytes], W [rows / 8][stage groups][1024 bytes]. wgmma reads 64 rows of
    // x where fewer are there; what it makes of the others is not used.
    static int stage_bytes(int stage_groups, int token_rows) { return stage_groups * 128 * (token_rows + rows); }
};

// Which scales are added with: none, those of tiles and groups, or the same with rows of a multiple of four.
enum class Scales : uint8_t { none, tiles, aligned_tiles };

template <int Count>
__device__ void load_scales(float (&to)[Count], const float* from, int n, int all, bool aligned) {
    if constexpr (Count > 1) {
        if (aligned) {  // n and all are multiples of Count
            using Vector = std::conditional_t<Count == 4, float4, float2>;
            const Vector v = *reinterpret_cast<const Vector*>(from + min(n, all - Count));
            to[0] = v.x, to[1] = v.y;
            if constexpr (Count == 4) to[2] = v.z, to[3] = v.w;
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < Count; ++i) to[i] = from[min(n + i, all - 1)];
}

template <int N, int TokenGroups, int RowGroups, int Cluster, Scales By>
__global__ void __launch_bounds__(Fp8Shape<N, TokenGroups, RowGroups, Cluster>::threads, 1)
    fp8_kernel(const __grid_constant__ Fp8Args args, const __grid_constant__ CUtensorMap x_map,
               const __grid_constant__ CUtensorMap w_map) {
    using S = Fp8Shape<N, TokenGroups, RowGroups, Cluster>;
    extern __shared__ __align__(128) uint8_t shared_bytes[];
    const ProductArgs& p = args.product;
    const uint32_t base = (shared_address(shared_bytes) + 1023u) & ~1023u;
    const int stage_groups = args.stage_groups, token_rows = args.token_rows, stages = args.stages;
    const uint32_t x_bytes = stage_groups * 128 * token_rows, stage_bytes = x_bytes + stage_groups * 128 * S::rows;
    const uint32_t full = base + stages * stage_bytes, empty = full + 8 * stages;
    const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0), group = warp / 4;
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
    uint32_t rank = 0;
    if (Cluster > 1) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));

    const Works works(p, S::rows * Cluster, S::tokens);
    const int first_work = static_cast<int>(blockIdx.x) / Cluster, clusters = static_cast<int>(gridDim.x) / Cluster;
    const int all_groups = (p.k + group_cols - 1) / group_cols, last_row = p.n - 1;
    constexpr int whole = S::chains;  // and a multiple of stage_groups: powers of two
    const int unit = stage_groups > whole ? stage_groups : whole;
    const int padded_groups = (all_groups + unit - 1) / unit * unit, all_stages = padded_groups / stage_groups;

    if (threadIdx.x == 0) {
        prefetch_map(&w_map);
        prefetch_map(&x_map);
        for (int s = 0; s < stages; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, Cluster * S::groups);
        }
        barrier_init_done();
    }
    if (Cluster > 1)
        cluster_sync();
    else
        __syncthreads();
    if (p.overlap) overlap_next();
    if (group == S::groups) {
        // 2 x 232 + 40 registers are what three warpgroups of 168 have: asking for more waits for ever.
        if constexpr (S::many) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp % 4 == 0 && lane == 0) {
            const auto load_w = [&](int2 at, int s, uint32_t slot) {
                barrier_expect(full + 8 * slot, stage_bytes);
                load_3d(base + slot * stage_bytes + x_bytes, &w_map, 0, s * stage_groups,
                        (at.y + static_cast<int>(rank) * S::rows) / 8, full + 8 * slot);
            };
            const auto load_x = [&](int2 at, int s, uint32_t slot) {
                const uint32_t to = base + slot * stage_bytes, barrier = full + 8 * slot;
                if constexpr (Cluster > 1)
                    load_3d_for_both(to + rank * (x_bytes / 2), &x_map, 0,
                                     at.x + static_cast<int>(rank) * S::tokens / 2, s * stage_groups, barrier);
                else
                    load_3d(to, &x_map, 0, at.x, s * stage_groups, barrier);
            };
            uint32_t slot = 0, parity = 1;
            for (int work = first_work; work < works.count; work += clusters) {
                const int2 at = works.at(work);
                int s = 0;
                if (work == first_work) {  // weights before the kernel ahead is done
                    for (; s < min(stages, all_stages); ++s) load_w(at, s, s);
                    if (p.overlap) wait_for_previous();
                    for (int i = 0; i < s; ++i) load_x(at, i, i);
                    slot = s == stages ? 0 : s;
                    parity = s == stages ? 0 : 1;
                }
                for (; s < all_stages; ++s) {
                    barrier_wait(empty + 8 * slot, parity);
                    load_w(at, s, slot);
                    load_x(at, s, slot);
                    if (++slot == static_cast<uint32_t>(stages)) slot = 0, parity ^= 1;
                }
            }
        }
    } else {
        if constexpr (S::many) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        if (p.overlap) wait_for_previous();  // scales may be what the kernel before wrote
        const int token_group = group % TokenGroups, row_group = group / TokenGroups;
        int token = 0, row = 0, split = 0;
        const float* of_rows[2] = {};
        const float* of_tokens[2] = {};
        const uint32_t w_upper = 0x40000000u | static_cast<uint32_t>(stage_groups * 64);
        constexpr int chains = S::chains;
        constexpr bool by_tile = By != Scales::none, aligned = By == Scales::aligned_tiles;
        constexpr bool one_block = 128 % S::rows == 0;  // of the blocks of 128 rows that have scales
        float acc[chains][N / 2], total[N / 2];
        // Of a turn's groups: of tokens g and g + 8, of the one or two blocks of rows.
        struct Factors {
            float token[2][by_tile ? chains : 1], row[2][by_tile ? chains : 1];
        } factors;
        const auto factors_of = [&](int n) {
            Factors f{};
            if constexpr (by_tile) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    load_scales(f.token[i], of_tokens[i], n, all_groups, aligned);
                    if (i == 0 || !one_block) load_scales(f.row[i], of_rows[i], n, all_groups, aligned);
                }
            }
            return f;
        };
        uint32_t slot = 0, parity = 0, done_slot = 0;
        int in_stage = 0, done_in_stage = 0;  // groups issued, groups added of a stage
        // Group n of 128 columns; behind the last they are zeros, as many as make whole stages of every chain. No
        // branches: they would make the assembler serialize the products around them (C7513).
        const auto issue = [&]<int I>(std::integral_constant<int, I>) {
            const uint32_t at = base + slot * stage_bytes;
            barrier_wait(full + 8 * slot, parity);
            const uint32_t left = swizzled_operand(at + (in_stage * token_rows + 64 * token_group) * 128);
            const uint32_t right =
                swizzled_operand(at + x_bytes + (row_group * (N / 8) * stage_groups + in_stage) * 1024);
            wgmma_fence();
#pragma unroll
            for (int j = 0; j < 4; ++j) WgmmaCodes<N, false>::run(acc[I], left + 2 * j, right + 2 * j, w_upper, j > 0);
            wgmma_commit();
            const bool next = ++in_stage == stage_groups, wraps = next && slot + 1 == static_cast<uint32_t>(stages);
            in_stage = next ? 0 : in_stage;
            slot = wraps ? 0 : slot + next;
            parity ^= wraps;
        };
        const auto add = [&]<int I>(std::integral_constant<int, I>, int n) {
            [[maybe_unused]] float by[2][2] = {};  // of the blocks of rows, of the tokens; zeros behind the last group
            if constexpr (by_tile) {
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    if (e < 2 || !one_block)
                        by[e / 2][e % 2] = n < all_groups ? factors.token[e % 2][I] * factors.row[e / 2][I] : 0.0f;
            }
#pragma unroll
            for (int v = 0; v < N / 2; ++v)
                if constexpr (by_tile)
                    total[v] = fmaf(acc[I][v], one_block || 8 * (v / 4) < split ? by[0][v / 2 % 2] : by[1][v / 2 % 2],
                                    total[v]);
                else
                    total[v] = acc[I][v] + total[v];
        };
        const auto release = [&] {
            const bool next = ++done_in_stage == stage_groups;
            if constexpr (Cluster > 1)
                for (uint32_t r = 0; r < Cluster; ++r)
                    barrier_arrive_at(empty + 8 * done_slot, r, next && threadIdx.x % 128 == 0);
            else
                barrier_arrive_if(empty + 8 * done_slot, next && threadIdx.x % 128 == 0);
            done_in_stage = next ? 0 : done_in_stage;
            done_slot += next;
            done_slot = done_slot == static_cast<uint32_t>(stages) ? 0 : done_slot;
        };
        const auto turn = [&]<int... I>(std::integer_sequence<int, I...>, int n) {
            const auto finish = [&]<int J>(std::integral_constant<int, J> j) {
                wgmma_wait<chains - 1 - J>();
                pin(acc[J]);
                add(j, n + J);
                release();
            };
            // Many tokens: scales a turn ahead. Few: they would not fit into registers.
            if constexpr (!S::many) factors = factors_of(n);
            (issue(std::integral_constant<int, I>()), ...);
            if constexpr (S::many) {
                const Factors next = factors_of(n + chains);
                (finish(std::integral_constant<int, I>()), ...);
                factors = next;
            } else {
                (finish(std::integral_constant<int, I>()), ...);
            }
        };
#pragma unroll 1
        for (int work = first_work; work < works.count; work += clusters) {
            const int2 origin = works.at(work);
            token = origin.x + 64 * token_group + warp % 4 * 16 + g;
            row = origin.y + static_cast<int>(rank) * S::rows + N * row_group;
            // Up to two blocks of 128 rows: columns of wgmma below `split` are of the first.
            split = (row / 128 + 1) * 128 - row;
            // In braces: nvcc 13.0 takes a discarded `if constexpr` whose statement begins with a pragma for more than
            // it is, and dropped the loop behind it, too (sums began with what registers held: NaN).
            if constexpr (by_tile) {
                for (int i = 0; i < 2; ++i) {
                    of_rows[i] = p.tile_scales + int64_t{min(row + i * split, last_row) / 128} * all_groups;
                    of_tokens[i] = p.group_scales + int64_t{min(token + 8 * i, p.tokens - 1)} * all_groups;
                }
            }
            if constexpr (S::many) factors = factors_of(0);
#pragma unroll
            for (float& v : total) v = 0.0f;
#pragma unroll 1
            for (int n = 0; n < padded_groups; n += chains) turn(std::make_integer_sequence<int, chains>(), n);
#pragma unroll
            for (int i = 0; i < N / 8; ++i) {
                const int column = row + 8 * i + 2 * c;
                if (column >= p.n) continue;
                const RowFactors first(p, 0, column), second(p, 0, min(column + 1, last_row));
                const bool both = column + 1 < p.n, pairs = both && p.y_stride % 2 == 0;
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int t = token + 8 * h;
                    if (t >= p.tokens) continue;
                    const float of_token = token_factor(p, t);
                    const float2 v{product_output(total[4 * i + 2 * h], first.scale * of_token, first.bias),
                                   product_output(total[4 * i + 2 * h + 1], second.scale * of_token, second.bias)};
                    float* to = p.y + t * p.y_stride + column;
                    if (pairs) {
                        *reinterpret_cast<float2*>(to) = v;
                    } else {
                        to[0] = v.x;
                        if (both) to[1] = v.y;
                    }
                }
            }
        }
    }
    __syncwarp();
    if (Cluster > 1) cluster_sync();  // nobody leaves while the other still arrives at its barriers
}

bool is_aligned(const float* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

int stage_groups_for(int rows) {
    const int fit = 32 * 1024 / (128 * rows);
    return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

template <int N, int TokenGroups, int RowGroups, int Cluster>
struct Launcher {
    using S = Fp8Shape<N, TokenGroups, RowGroups, Cluster>;

    static constexpr auto plain = fp8_kernel<N, TokenGroups, RowGroups, Cluster, Scales::none>;
    static constexpr auto by_tile = fp8_kernel<N, TokenGroups, RowGroups, Cluster, Scales::tiles>;
    static constexpr auto by_aligned_tile = fp8_kernel<N, TokenGroups, RowGroups, Cluster, Scales::aligned_tiles>;

    static cudaError_t prepare() {
        for (const auto kernel : {plain, by_tile, by_aligned_tile})
            if (const cudaError_t code =
                    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, all_bytes))
                return code;
        return cudaSuccess;
    }
    static cudaError_t launch(Fp8Args args, int multiprocessors, cudaStream_t stream) {
        const ProductArgs& p = args.product;
        const int groups = (p.k + group_cols - 1) / group_cols;
        // Stages of about 32 KB; token_rows of a box.
        args.token_rows = Cluster > 1 ? S::tokens : std::min(64, (p.tokens + 7) / 8 * 8);
        args.stage_groups = Cluster > 1 ? 1 : stage_groups_for(args.token_rows + S::rows);
        const int stage = S::stage_bytes(args.stage_groups, args.token_rows);
        // 8 KB behind the last stage: what wgmma reads of absent tokens.
        args.stages = std::clamp((all_bytes - 1024 - 8192) / (stage + 16), 2, 16);
        CUtensorMap x_map, w_map;
        const auto k_groups = static_cast<cuuint64_t>(groups);
        if (!encode_3d(x_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, p.x,
                       {group_cols, static_cast<cuuint64_t>(p.tokens), k_groups},
                       {static_cast<cuuint64_t>(p.x_stride), group_cols},
                       {group_cols, static_cast<cuuint32_t>(args.token_rows / Cluster),
                        static_cast<cuuint32_t>(args.stage_groups)},
                       CU_TENSOR_MAP_SWIZZLE_128B) ||
            !encode_3d(w_map, CU_TENSOR_MAP_DATA_TYPE_INT32, p.tiles,
                       {256, k_groups, static_cast<cuuint64_t>((p.n + 7) / 8)}, {1024, 1024 * k_groups},
                       {256, static_cast<cuuint32_t>(args.stage_groups), S::rows / 8}, CU_TENSOR_MAP_SWIZZLE_NONE))
            return cudaErrorInvalidValue;
        const int64_t blocks = int64_t{(p.n + S::rows * Cluster - 1) / (S::rows * Cluster)} * Cluster *
                               ((p.tokens + S::tokens - 1) / S::tokens);
        const bool aligned = groups % 4 == 0 && is_aligned(p.tile_scales) && is_aligned(p.group_scales);
        const auto kernel = !p.tile_scales ? plain : aligned ? by_aligned_tile : by_tile;
        cudaLaunchAttribute attributes[2] = {};
        attributes[0].id = cudaLaunchAttributeClusterDimension;
        attributes[0].val.clusterDim = {Cluster, 1, 1};
        attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[1].val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t config{};
        config.gridDim = static_cast<unsigned>(std::min<int64_t>(blocks, multiprocessors / Cluster * Cluster));
        config.blockDim = S::threads;
        config.dynamicSmemBytes = all_bytes;
        config.stream = stream;
        config.attrs = attributes;
        config.numAttrs = p.overlap ? 2 : 1;
        return cudaLaunchKernelEx(&config, kernel, args, x_map, w_map);
    }
};

// Rows of a thread block for few tokens.
constexpr int narrow_rows[] = {32, 48, 56, 64, 96, 112, 128, 192, 224};

template <class Visit>
cudaError_t visit_narrow(int rows, Visit visit) {
    switch (rows) {
        case 32:
            return visit(Launcher<16, 1, 2, 1>{});
        case 48:
            return visit(Launcher<24, 1, 2, 1>{});
        case 56:
            return visit(Launcher<56, 1, 1, 1>{});
        case 64:
            return visit(Launcher<32, 1, 2, 1>{});
        case 96:
            return visit(Launcher<48, 1, 2, 1>{});
        case 112:
            return visit(Launcher<56, 1, 2, 1>{});
        case 128:
            return visit(Launcher<64, 1, 2, 1>{});
        case 192:
            return visit(Launcher<96, 1, 2, 1>{});
        case 224:
            return visit(Launcher<112, 1, 2, 1>{});
        default:
            return cudaErrorInvalidValue;
    }
}

// What leaves the fewest rows to the busiest multiprocessor; of equals the most rows a block.
int choose_rows(int n, int multiprocessors) {
    int best = narrow_rows[0];
    int64_t least = INT64_MAX;
    for (const int rows : narrow_rows) {
        const int64_t blocks = (n + rows - 1) / rows;
        const int64_t busiest = (blocks + multiprocessors - 1) / multiprocessors * rows;
        if (busiest <= least) least = busiest, best = rows;
    }
    return best;
}

}  // namespace

cudaError_t launch_fp8(const ProductArgs& product, int multiprocessors, cudaStream_t stream) {
    if (!map_encoder()) return cudaErrorNotSupported;
    const Fp8Args args{.product = product};
    if (product.tokens > fp8_most_narrow_tokens) return Launcher<128, 2, 1, 2>::launch(args, multiprocessors, stream);
    return visit_narrow(choose_rows(product.n, multiprocessors),
                        [&](auto launcher) { return launcher.launch(args, multiprocessors, stream); });
}

cudaError_t prepare_fp8() {
    for (const int rows : narrow_rows)
        if (const cudaError_t code = visit_narrow(rows, [](auto launcher) { return launcher.prepare(); })) return code;
    return Launcher<128, 2, 1, 2>::prepare();
}

}  // namespace nibble::cuda
