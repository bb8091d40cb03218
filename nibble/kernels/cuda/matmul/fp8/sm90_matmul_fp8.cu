// W8A8 on the FP8 tensor cores: weights and inputs are E4M3 codes; one order of sums for every number of tokens.
//
// Operands: tokens are the rows of wgmma (64 per warpgroup), rows of W are its columns.
//
// Order of sums: K is cut into groups of 128 columns. The tensor core sums one group as a chain of four wgmma of 32
// columns from zero, with about 14 bits. The result of each group is multiplied by the group's scales and added to FP32
// registers, group after group. Each output is one such sequence, so neither the tile size nor the number of tokens
// changes a bit.
//
// Pipelining: the chains of several groups are in flight at once, each with its own accumulators, inside one iteration
// of the loop. A chain that stays in flight across an iteration makes ptxas serialize all of them (C7514: 410 instead
// of 1000 TFLOP/s).
//
// Tiles:
//   up to 64 tokens, up to 128   a thread block takes a slice of the rows, so that one wave of thread blocks reads all
//                                of W once; a stage of the ring buffer holds several groups
//   more, few rows               the same with 128 tokens x 64 rows, where that is one wave
//   more                         128 tokens x 128 rows; the two thread blocks of a cluster share x, each loads half of
//                                x for both (multicast). Enough tiles: 256 x 128 (sm90_matmul_fp8_m256.cu)
// One warp fills the ring buffer, and requests the first weights before it waits for the kernel that writes x. The
// kernel is persistent: the ring fills for the next tile while results of this one are stored.
//
// Scales of groups also go through the ring buffer. Loads by the warps that add lie in the chain of dependences (150 of
// 1100 us at 8192^3, 2 of 20 at one token). Four-byte copies by a warp of their own are slower still (1470 us); the
// copy engine takes the scales of four groups at once.
#include "kernels/cuda/matmul/fp8/fp8_ring.cuh"
#include "kernels/cuda/matmul/matmul_epilogue.cuh"
#include "kernels/cuda/matmul/wgmma_codes.cuh"

#include <span>
#include <type_traits>
#include <utility>

namespace nibble::cuda {
namespace {

constexpr int all_bytes = 220 * 1024;

// A thread block: TokenGroups warpgroups along tokens (64 each) by RowGroups along rows (N each). The thread blocks of
// a cluster have the same tokens and neighbouring rows.
template <int N, int TokenGroups, int RowGroups, int Cluster>
struct Fp8Shape {
    static constexpr bool many = N * TokenGroups == 256;
    static constexpr int rows = N * RowGroups, tokens = 64 * TokenGroups, groups = TokenGroups * RowGroups;
    // Chains in flight, as many as registers allow (168 per thread for nine warps, 255 for five). An iteration waits
    // for the latency of one chain.
    static constexpr int accumulators = many ? 2 : N <= 32 || groups == 1 ? 4 : N <= 64 ? 2 : 1;
    // The last warp fills the ring buffer. With `many` it has a whole warpgroup, because setmaxnreg moves registers
    // between warpgroups.
    static constexpr int threads = 128 * groups + (many ? 128 : 32);
    // A stage: x [stage groups][token_rows][128 bytes], then W [rows / 8][stage groups][1024 bytes]. wgmma reads 64
    // rows of x even where there are fewer tokens; those results are not used.
    static int stage_bytes(int stage_groups, int token_rows) { return stage_groups * 128 * (token_rows + rows); }
    // Number of 128-row scale blocks that the rows of a thread block can touch.
    static constexpr int row_blocks = 128 % rows == 0 ? 1 : rows > 128 ? 3 : 2;
    // After the stages come units of scales. A unit has the scales of four groups: of tokens [token_rows][4], then of
    // row blocks [row_blocks][4].
    static __host__ __device__ int unit_bytes(int token_rows) { return token_rows * 16 + 128; }
    // Units for the groups in all stages, rounded up, and one more.
    static __host__ __device__ int units(int stages, int stage_groups) { return (stages * stage_groups + 3) / 4 + 1; }
};

// Scales of groups: none; tiles: scales of weight tiles and token groups, loaded by the warps that add; ring: the same
// through the ring buffer, four groups at a time (the number of groups must be a multiple of four).
enum class Scales : uint8_t { none, tiles, ring };

// Holds what all warps of a thread block share: the parts of shared memory, the tiles of outputs, the groups of K.
template <class S, int Cluster, Scales By>
struct Fp8Block {
    int stage_groups, token_rows, stages;
    uint32_t x_bytes, stage_bytes, base, scales, unit_bytes, units, full, empty;
    uint32_t rank = 0;  // in the cluster
    OutputTiles works;
    int first_work, clusters, all_groups, last_row, padded_groups, all_stages;

    __device__ __forceinline__ Fp8Block(const Fp8ProductArgs& args, uint32_t shared)
        : stage_groups(S::many ? 1 : args.stage_groups),
          token_rows(S::many ? S::tokens : args.token_rows),
          stages(args.stages),
          x_bytes(stage_groups * 128 * token_rows),
          stage_bytes(x_bytes + stage_groups * 128 * S::rows),
          base((shared + 1023u) & ~1023u),
          scales(base + stages * stage_bytes),
          unit_bytes(S::unit_bytes(token_rows)),
          units(By == Scales::ring ? S::units(stages, stage_groups) : 0),
          full(scales + units * unit_bytes),
          empty(full + 8 * stages),
          works(args.product, S::rows * Cluster, S::tokens),
          first_work(static_cast<int>(blockIdx.x) / Cluster),
          clusters(static_cast<int>(gridDim.x) / Cluster),
          all_groups((args.product.k + fp8_group_cols - 1) / fp8_group_cols),
          last_row(args.product.n - 1) {
        if (Cluster > 1) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
        // Groups are padded to a multiple of S::accumulators and of stage_groups, both powers of two.
        const int unit = stage_groups > S::accumulators ? stage_groups : S::accumulators;
        padded_groups = (all_groups + unit - 1) / unit * unit;
        all_stages = padded_groups / stage_groups;
    }
    __device__ __forceinline__ bool begins_unit(int s) const { return By == Scales::ring && s * stage_groups % 4 == 0; }
    __device__ __forceinline__ int first_row(int2 origin) const { return origin.y + static_cast<int>(rank) * S::rows; }
};

// Requests stage `s` of the tile's weights, and the scales of weights that begin with it.
template <class S, int Cluster, Scales By>
__device__ __forceinline__ void load_w(const Fp8Block<S, Cluster, By>& b, const ProductArgs& p,
                                       const CUtensorMap& w_map, int2 at, int s, uint32_t slot, uint32_t unit) {
    const int row = b.first_row(at);
    const uint32_t barrier = b.full + 8 * slot, to = b.scales + unit * b.unit_bytes + b.token_rows * 16;
    barrier_expect(barrier, b.stage_bytes + (b.begins_unit(s) ? b.token_rows * 16 + S::row_blocks * 16 : 0));
    load_3d(b.base + slot * b.stage_bytes + b.x_bytes, &w_map, 0, s * b.stage_groups, row / 8, barrier);
    if (b.begins_unit(s))
        for (int i = 0; i < S::row_blocks; ++i)
            bulk_copy(to + 16 * i,
                      p.tile_scales + int64_t{min(row / 128 + i, b.last_row / 128)} * b.all_groups + s * b.stage_groups,
                      16, barrier);
}

template <class S, int Cluster, Scales By>
__device__ __forceinline__ void load_first_w(const Fp8Block<S, Cluster, By>& b, const ProductArgs& p,
                                             const CUtensorMap& w_map) {
    const int2 at = b.works.at(b.first_work);
    for (int i = 0; i < min(b.stages, b.all_stages); ++i) load_w(b, p, w_map, at, i, i, i * b.stage_groups / 4);
}

// Without a cluster the first weights are requested before the thread block's first barrier (2 to 4 % faster at few
// tokens). In a cluster the other thread block must see initialised barriers first.
template <int Cluster>
inline constexpr bool early_weights = Cluster == 1;

// One thread fills the ring, tile after tile.
template <class S, int Cluster, Scales By>
__device__ __forceinline__ void fill_ring(const Fp8Block<S, Cluster, By>& b, const ProductArgs& p,
                                          const CUtensorMap& x_map, const CUtensorMap& w_map,
                                          const CUtensorMap& scale_map) {
    const int part = b.token_rows / Cluster;  // rows of x that this thread block loads for the whole cluster
    const auto load_x = [&](int2 at, int s, uint32_t slot, uint32_t unit) {
        const uint32_t to = b.base + slot * b.stage_bytes, barrier = b.full + 8 * slot;
        if constexpr (Cluster > 1)
            load_3d_for_all<Cluster>(to + b.rank * part * 128, &x_map, 0, at.x + static_cast<int>(b.rank) * part,
                                     s * b.stage_groups, barrier);
        else
            load_3d(to, &x_map, 0, at.x, s * b.stage_groups, barrier);
        if (b.begins_unit(s)) load_3d(b.scales + unit * b.unit_bytes, &scale_map, s * b.stage_groups, at.x, 0, barrier);
    };
    uint32_t slot = 0, parity = 1, unit = 0;
    const auto next = [&](int s) {
        if (++slot == static_cast<uint32_t>(b.stages)) slot = 0, parity ^= 1;
        if ((s + 1) * b.stage_groups % 4 == 0 && ++unit == b.units) unit = 0;
    };
    for (int work = b.first_work; work < b.works.count; work += b.clusters) {
        const int2 at = b.works.at(work);
        int s = 0;
        if (work == b.first_work) {  // weights are requested before the previous kernel ends, x after
            const int first = min(b.stages, b.all_stages);
            if constexpr (!early_weights<Cluster>) load_first_w(b, p, w_map);
            if (p.overlap) wait_for_previous();
            for (; s < first; ++s) load_x(at, s, slot, unit), next(s);
        }
        for (; s < b.all_stages; ++s) {
            barrier_wait(b.empty + 8 * slot, parity);
            load_w(b, p, w_map, at, s, slot, unit);
            load_x(at, s, slot, unit);
            next(s);
        }
    }
}

// Stores a warpgroup's outputs: tokens `token` and `token` + 8, rows from `row` on, of which a thread has two of eight.
template <int N>
__device__ __forceinline__ void store_outputs(const ProductArgs& p, const float (&total)[N / 2], int token, int row,
                                              int c, int last_row) {
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
            store_output2(p, t * p.y_stride + column, v, pairs, both);
        }
    }
}

// A warpgroup multiplies 64 tokens by N rows of every tile: the chains of an iteration are in flight at once.
template <class S, int N, int TokenGroups, int Cluster, Scales By>
__device__ __forceinline__ void multiply(const Fp8Block<S, Cluster, By>& b, const ProductArgs& p, int warp, int lane) {
    const int group = warp / 4, g = lane / 4, c = lane % 4;
    const int token_group = group % TokenGroups, row_group = group / TokenGroups;
    int token = 0, row = 0, split = 0;
    const uint32_t w_upper = 0x40000000u | static_cast<uint32_t>(b.stage_groups * 64);
    constexpr int accumulators = S::accumulators;
    constexpr bool one_block = 128 % S::rows == 0;  // all rows lie in one 128-row scale block
    float acc[accumulators][N / 2], total[N / 2];
    // Scales of the groups in flight: of the tokens g and g + 8, and of the one or two row blocks.
    [[maybe_unused]] float token_scale[2][accumulators], row_scale[2][accumulators];
    const float* of_rows[2] = {};
    const float* of_tokens[2] = {};
    uint32_t token_at[2] = {}, row_at = 0;  // offsets in a unit of scales
    for (int h = 0; h < 2; ++h) token_at[h] = 16 * min(64 * token_group + warp % 4 * 16 + g + 8 * h, b.token_rows - 1);
    uint32_t unit_at = b.scales, in_unit = 0;
    uint32_t slot = 0, parity = 0, done_slot = 0;
    int in_stage = 0, done_in_stage = 0;  // groups of the current stage that were issued, and that were added
    // Issues the chain of the next group with the accumulators I. Groups after the last one are zeros and pad to a
    // whole iteration. Selections instead of branches: a branch makes ptxas serialize the wgmma around it (C7513).
    const auto issue = [&]<int I>(std::integral_constant<int, I>) {
        const uint32_t at = b.base + slot * b.stage_bytes;
        barrier_wait(b.full + 8 * slot, parity);
        const uint32_t left = swizzled_operand(at + (in_stage * b.token_rows + 64 * token_group) * 128);
        const uint32_t right =
            swizzled_operand(at + b.x_bytes + (row_group * (N / 8) * b.stage_groups + in_stage) * 1024);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < 4; ++j) WgmmaCodes<N, false>::run(acc[I], left + 2 * j, right + 2 * j, w_upper, j > 0);
        wgmma_commit();
        if constexpr (By == Scales::ring) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                token_scale[i][I] = shared_float(unit_at + token_at[i] + in_unit);
                if (i == 0 || !one_block) row_scale[i][I] = shared_float(unit_at + row_at + 16 * i + in_unit);
            }
            in_unit = (in_unit + 4) % 16;
            unit_at += in_unit ? 0 : b.unit_bytes;
            unit_at = unit_at == b.full ? b.scales : unit_at;
        }
        const bool next = ++in_stage == b.stage_groups, wraps = next && slot + 1 == static_cast<uint32_t>(b.stages);
        in_stage = next ? 0 : in_stage;
        slot = wraps ? 0 : slot + next;
        parity ^= wraps;
    };
    const auto load_scales = [&](int n) {  // Scales::tiles: of the groups n ... of an iteration; zero after the last
        if constexpr (By == Scales::tiles) {
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < accumulators; ++j) {
                    const int group_of = min(n + j, b.all_groups - 1);
                    token_scale[i][j] = of_tokens[i][group_of];
                    if (i == 0 || !one_block) row_scale[i][j] = n + j < b.all_groups ? of_rows[i][group_of] : 0.0f;
                }
        }
    };
    const auto add = [&]<int I>(std::integral_constant<int, I>) {
        [[maybe_unused]] float by[2][2] = {};  // factors by row block and token; zero after the last group
        if constexpr (By != Scales::none) {
#pragma unroll
            for (int e = 0; e < 4; ++e)
                if (e < 2 || !one_block) by[e / 2][e % 2] = token_scale[e % 2][I] * row_scale[e / 2][I];
        }
#pragma unroll
        for (int v = 0; v < N / 2; ++v)
            if constexpr (By != Scales::none)
                total[v] =
                    fmaf(acc[I][v], one_block || 8 * (v / 4) < split ? by[0][v / 2 % 2] : by[1][v / 2 % 2], total[v]);
            else
                total[v] = acc[I][v] + total[v];
    };
    const auto release = [&] {
        const bool next = ++done_in_stage == b.stage_groups;
        __syncwarp();
        if constexpr (Cluster > 1)
            for (uint32_t r = 0; r < Cluster; ++r) barrier_arrive_at(b.empty + 8 * done_slot, r, next && lane == 0);
        else
            barrier_arrive_if(b.empty + 8 * done_slot, next && lane == 0);
        done_in_stage = next ? 0 : done_in_stage;
        done_slot += next;
        done_slot = done_slot == static_cast<uint32_t>(b.stages) ? 0 : done_slot;
    };
    const auto turn = [&]<int... I>(std::integer_sequence<int, I...>, int n) {
        const auto finish = [&]<int J>(std::integral_constant<int, J> j) {
            wgmma_wait<accumulators - 1 - J>();
            pin(acc[J]);
            add(j);
            release();
        };
        load_scales(n);
        (issue(std::integral_constant<int, I>()), ...);
        (finish(std::integral_constant<int, I>()), ...);
    };
#pragma unroll 1
    for (int work = b.first_work; work < b.works.count; work += b.clusters) {
        const int2 origin = b.works.at(work);
        token = origin.x + 64 * token_group + warp % 4 * 16 + g;
        row = b.first_row(origin) + N * row_group;
        // wgmma columns below `split` belong to the first row block, the others to the second.
        split = (row / 128 + 1) * 128 - row;
        row_at = b.token_rows * 16 + 16 * (row / 128 - b.first_row(origin) / 128);
        // The braces are needed: nvcc 13.0 also drops the statement after a discarded `if constexpr` whose own
        // statement begins with a pragma (the loop that clears `total` was lost, and sums were NaN).
        if constexpr (By == Scales::tiles) {
            for (int i = 0; i < 2; ++i) {
                of_rows[i] = p.tile_scales + int64_t{min(row + i * split, b.last_row) / 128} * b.all_groups;
                of_tokens[i] = p.group_scales + int64_t{min(token + 8 * i, p.tokens - 1)} * b.all_groups;
            }
        }
#pragma unroll
        for (float& v : total) v = 0.0f;
#pragma unroll 1
        for (int n = 0; n < b.padded_groups; n += accumulators)
            turn(std::make_integer_sequence<int, accumulators>(), n);
        store_outputs<N>(p, total, token, row, c, b.last_row);
    }
}

template <class S, int N, int TokenGroups, int Cluster, Scales By>
__global__ void __launch_bounds__(S::threads, 1)
    sm90_matmul_fp8_kernel(const __grid_constant__ Fp8ProductArgs args, const __grid_constant__ CUtensorMap x_map,
                           const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap scale_map) {
    extern __shared__ __align__(128) uint8_t shared_bytes[];
    const ProductArgs& p = args.product;
    const Fp8Block<S, Cluster, By> b(args, shared_address(shared_bytes));
    const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool fills = warp == 4 * S::groups && lane == 0;
    if (fills) {
        for (int s = 0; s < b.stages; ++s) {
            barrier_init(b.full + 8 * s, 1);
            barrier_init(b.empty + 8 * s, Cluster * S::groups * 4);
        }
        barrier_init_done();
        if constexpr (early_weights<Cluster>) load_first_w(b, p, w_map);
        prefetch_map(&w_map);
        prefetch_map(&x_map);
        if (By == Scales::ring) prefetch_map(&scale_map);
    }
    __syncwarp();
    if (Cluster > 1)
        cluster_sync();
    else
        __syncthreads();
    if (p.overlap) overlap_next();
    if (warp / 4 == S::groups) {
        // Three warpgroups of 168 registers are 2 x 232 + 40. A request beyond that total never returns.
        if constexpr (S::many) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (fills) fill_ring(b, p, x_map, w_map, scale_map);
    } else {
        if constexpr (S::many) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        if (p.overlap) wait_for_previous();  // the previous kernel may write the scales of inputs
        multiply<S, N, TokenGroups>(b, p, warp, lane);
    }
    __syncwarp();
    if (Cluster > 1) cluster_sync();  // no thread block ends while the other one still arrives at its barriers
}

// Groups per stage, for stages of about 32 KB.
int stage_groups_for(int rows) {
    const int fit = 32 * 1024 / (128 * rows);
    return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

template <int N, int TokenGroups, int RowGroups, int Cluster>
struct Launcher {
    using S = Fp8Shape<N, TokenGroups, RowGroups, Cluster>;

    static constexpr auto plain = sm90_matmul_fp8_kernel<S, N, TokenGroups, Cluster, Scales::none>;
    static constexpr auto by_tile = sm90_matmul_fp8_kernel<S, N, TokenGroups, Cluster, Scales::tiles>;
    static constexpr auto by_ring = sm90_matmul_fp8_kernel<S, N, TokenGroups, Cluster, Scales::ring>;

    static cudaError_t prepare() {
        for (const auto kernel : {plain, by_tile, by_ring})
            if (const cudaError_t code =
                    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, all_bytes))
                return code;
        return cudaSuccess;
    }
    static cudaError_t launch(Fp8ProductArgs args, int multiprocessors, cudaStream_t stream) {
        const ProductArgs& p = args.product;
        args.token_rows = S::many ? S::tokens : std::min(S::tokens, (p.tokens + 7) / 8 * 8);
        args.stage_groups = S::many ? 1 : stage_groups_for(args.token_rows + S::rows);
        const int stage = S::stage_bytes(args.stage_groups, args.token_rows);
        const bool ring = p.tile_scales && fp8_scales_in_fours(p);
        // 8 KB after the last stage are read by wgmma as absent tokens. Scales take a quarter of a unit per group.
        const int units = ring ? S::unit_bytes(args.token_rows) : 0;
        args.stages = std::clamp(
            (all_bytes - 1024 - 8192 - 2 * units) / (stage + (args.stage_groups * units + 3) / 4 + 16), 2, 16);
        CUtensorMap x_map, w_map, scale_map{};
        if (!encode_fp8_maps(x_map, w_map, p, args.token_rows / Cluster, S::rows, args.stage_groups) ||
            (ring && !encode_fp8_scales(scale_map, p, args.token_rows)))
            return cudaErrorInvalidValue;
        return launch_fp8_kernel(!p.tile_scales ? plain
                                 : ring         ? by_ring
                                                : by_tile,
                                 Cluster, fp8_tiles(p, S::rows * Cluster, S::tokens), S::threads, all_bytes, p.overlap,
                                 multiprocessors, stream, args, x_map, w_map, scale_map);
    }
};

// Compiled numbers of rows per thread block, for up to 64 tokens and for up to 128.
constexpr int narrow_rows[] = {32, 48, 56, 64, 96, 112, 128, 192, 224}, medium_rows[] = {32, 56, 64};

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
template <class Visit>
cudaError_t visit_medium(int rows, Visit visit) {
    switch (rows) {
        case 32:
            return visit(Launcher<32, 2, 1, 1>{});
        case 56:
            return visit(Launcher<56, 2, 1, 1>{});
        case 64:
            return visit(Launcher<64, 2, 1, 1>{});
        default:
            return cudaErrorInvalidValue;
    }
}
using Square = Launcher<128, 2, 1, 2>;

struct Choice {
    int rows = 0;
    int64_t busiest = INT64_MAX;  // rows that the busiest multiprocessor computes
};
// The number of rows per thread block that gives the busiest multiprocessor the fewest rows; of equal ones the largest.
Choice choose_rows(std::span<const int> from, int n, int multiprocessors) {
    Choice best;
    for (const int rows : from) {
        const int64_t blocks = (n + rows - 1) / rows;
        const int64_t busiest = (blocks + multiprocessors - 1) / multiprocessors * rows;
        if (busiest <= best.busiest) best = {rows, busiest};
    }
    return best;
}

}  // namespace

Fp8Choice choose_fp8(const ProductArgs& product, int multiprocessors) {
    const int clusters = multiprocessors / 2;
    const int64_t square = (fp8_tiles(product, 256, 128) + clusters - 1) / clusters;
    if (product.tokens <= fp8_most_narrow_tokens)
        return {Fp8Kernel::narrow, choose_rows(narrow_rows, product.n, multiprocessors).rows};
    if (product.tokens <= 128) {
        const Choice medium = choose_rows(medium_rows, product.n, multiprocessors);
        if (medium.busiest == medium.rows && medium.rows < square * 128) return {Fp8Kernel::medium, medium.rows};
    }
    // Few rows of W: half a tile a thread block, where that is one wave and takes no multiprocessor a second tile.
    constexpr int half_rows = 64;
    if (product.tokens > 128 && square == 1 && fp8_tiles(product, half_rows, 128) <= multiprocessors)
        return {Fp8Kernel::medium, half_rows};
    // One tile of 256 x 128 takes 1.8 times as long as one of 128 x 128.
    const int64_t wide = (fp8_wide_tiles(product) + clusters - 1) / clusters;
    return {fits_sm90_matmul_fp8_m256(product) && wide * 18 < square * 10 ? Fp8Kernel::wide : Fp8Kernel::square};
}

cudaError_t launch_sm90_matmul_fp8(const ProductArgs& product, const Fp8Choice& choice, int multiprocessors,
                                   cudaStream_t stream) {
    if (!map_encoder()) return cudaErrorNotSupported;
    const Fp8ProductArgs args{.product = product};
    const auto launch = [&](auto launcher) { return launcher.launch(args, multiprocessors, stream); };
    switch (choice.kernel) {
        case Fp8Kernel::narrow:
            return visit_narrow(choice.rows, launch);
        case Fp8Kernel::medium:
            return visit_medium(choice.rows, launch);
        case Fp8Kernel::wide:
            return launch_sm90_matmul_fp8_m256(product, multiprocessors, stream);
        case Fp8Kernel::square:
            break;
    }
    return launch(Square{});
}

cudaError_t prepare_sm90_matmul_fp8() {
    const auto prepare = [](auto launcher) { return launcher.prepare(); };
    for (const int rows : narrow_rows)
        if (const cudaError_t code = visit_narrow(rows, prepare)) return code;
    for (const int rows : medium_rows)
        if (const cudaError_t code = visit_medium(rows, prepare)) return code;
    if (const cudaError_t code = prepare_sm90_matmul_fp8_m256()) return code;
    return Square::prepare();
}

}  // namespace nibble::cuda
