// W8A8 for the experts of a mixture on the FP8 tensor cores: the sums of sm90_matmul_fp8.cu, expert by expert in one
// launch.
//
// Rows of W are the rows of wgmma (64 per warpgroup), tokens its columns, because a decoding step has few rows of x for
// each of many experts. The sums of the tensor cores do not depend on which operand is which.
//
// Every thread block has an equal share of all pairs (tile of tokens, eight rows) and processes it in rounds of up to
// 64 rows per warpgroup. The tiles of tokens of an expert use the same rows one after the other, which then come from
// the L2. The copy engine streams the rows' codes, and one or four warps gather the rows of x, into the same ring
// buffer of stages, which does not drain between rounds or experts.
#include "kernels/cuda/matmul/matmul_epilogue.cuh"
#include "kernels/cuda/matmul/w4a16/w4a16_experts.cuh"
#include "kernels/cuda/matmul/wgmma_codes.cuh"
#include "kernels/cuda/moe/moe_launch.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <utility>

namespace nibble::cuda {
namespace {

using experts::Tables;

constexpr int group_cols = 128, all_bytes = 227 * 1024;

__device__ void copy4(uint32_t to, const float* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

// Tokens per tile; warpgroups of 64 rows; groups of 128 columns per stage.
template <int N, int Groups, int StageGroups>
struct Shape {
    static constexpr int row_tiles = 8 * Groups;  // tiles of eight rows per round
    static constexpr int copiers = N >= 64 ? 4 : 1;
    static constexpr int threads = 128 * Groups + 32 * copiers;
    // A stage: W [row_tiles][StageGroups][1024], x [StageGroups][N][128].
    static constexpr int w_bytes = row_tiles * StageGroups * fp8_tile_bytes, x_bytes = StageGroups * N * 128;
    static constexpr int stage_bytes = w_bytes + x_bytes;
    static constexpr int scale_bytes = StageGroups * N * 4;  // [StageGroups][N], of inputs, per stage
    static constexpr int table_bytes(int experts) { return 8 * (experts + 1); }
    static constexpr int stages =
        std::min(8, (all_bytes - 1024 - table_bytes(most_experts)) / (stage_bytes + scale_bytes + 16));
    static constexpr int scales_at = stages * stage_bytes, barriers_at = scales_at + stages * scale_bytes;
    static constexpr int tables_at = barriers_at + 16 * stages;
    static constexpr int bytes(int experts) { return 1024 + tables_at + table_bytes(experts); }
    static_assert(stages >= 3);
};

// The rounds of a thread block: `count` tiles of eight rows from `row` on, for one tile of tokens of one expert.
struct Rounds {
    Tables tables;
    int all_row_tiles, most, tile_tokens;
    int at, end;  // range in all tiles of tokens times tiles of rows, expert by expert
    int expert = 0, row = 0, count = 0, first = 0, present = 0;

    __device__ Rounds(const Tables& t, int rows, int most_rows, int tokens)
        : tables(t), all_row_tiles(rows), most(most_rows), tile_tokens(tokens) {
        const int64_t all = int64_t{t.before[t.experts]} * rows;
        at = static_cast<int>(all * blockIdx.x / gridDim.x);
        end = static_cast<int>(all * (blockIdx.x + 1) / gridDim.x);
        if (more()) expert = t.expert_of(at / rows);
        place();
    }
    __device__ bool more() const { return at < end; }
    __device__ void next() {
        at += count;
        if (more() && at >= tables.before[expert + 1] * all_row_tiles) expert = tables.expert_of(at / all_row_tiles);
        place();
    }

private:
    __device__ void place() {
        if (!more()) return;
        const int before = tables.before[expert], tiles = tables.before[expert + 1] - before;
        const int local = at - before * all_row_tiles, band = local / (most * tiles);
        const int rows = min(most, all_row_tiles - band * most), in_band = local - band * most * tiles;
        const int tile = in_band / rows, skip = in_band - tile * rows;
        row = band * most + skip;
        count = min(rows - skip, end - at);
        first = tables.begin[expert] + tile * tile_tokens;
        present = min(tile_tokens, tables.begin[expert + 1] - first);
    }
};

// A lane's part of loading a round's rows of x and their scales.
template <int N, int Groups, int StageGroups>
__device__ void bring(const ProductArgs& p, Rounds round, int all_groups, uint32_t base, int copier, int lane) {
    using S = Shape<N, Groups, StageGroups>;
    constexpr int held = N / 4 / S::copiers;  // rows: eight lanes per row
    constexpr int scales = StageGroups * N / (32 * S::copiers) > 0 ? StageGroups * N / (32 * S::copiers) : 1;
    const uint32_t full = base + S::barriers_at, empty = full + 8 * S::stages;
    const int64_t row_bytes = int64_t{all_groups} * fp8_tile_bytes;
    uint32_t slot = 0, parity = 1;
#pragma unroll 1
    for (; round.more(); round.next()) {
        const auto source = [&](int token) {
            const int slot_of_token = round.first + min(token, round.present - 1);
            return int64_t{p.rows ? p.rows[slot_of_token] : slot_of_token};
        };
        const uint8_t* from[held];
#pragma unroll
        for (int j = 0; j < held; ++j)
            from[j] = p.x + source(4 * (j * S::copiers + copier) + lane / 8) * p.x_stride + lane % 8 * 16;
        const float* scale_from[scales] = {};
#pragma unroll
        for (int j = 0; j < scales; ++j) {
            const int i = 32 * (j * S::copiers + copier) + lane;
            if (p.group_scales && i < StageGroups * N)
                scale_from[j] = p.group_scales + source(i / StageGroups) * all_groups + i % StageGroups;
        }
        const int own = 32 * copier + lane;  // the token whose scale the lane loads
        const float* token_scale = p.token_scales && own < round.present ? p.token_scales + source(own) : nullptr;
        const uint8_t* w = p.tiles + round.expert * p.expert_bytes + (round.row + lane) * row_bytes;
#pragma unroll 1
        for (int n = 0; n < all_groups; n += StageGroups) {
            const int here = min(StageGroups, all_groups - n);
            const uint32_t stage = base + slot * S::stage_bytes,
                           scales_to = base + S::scales_at + slot * S::scale_bytes;
            barrier_wait(empty + 8 * slot, parity);
            if (copier == 0) {
                if (lane == 0) barrier_expect(full + 8 * slot, round.count * here * fp8_tile_bytes);
                __syncwarp();
                if (lane < round.count)
                    bulk_copy(stage + lane * StageGroups * fp8_tile_bytes, w + int64_t{n} * fp8_tile_bytes,
                              here * fp8_tile_bytes, full + 8 * slot);
            }
            // Slots of absent tokens keep old data: their columns are never stored.
#pragma unroll
            for (int j = 0; j < held; ++j) {
                const int token = 4 * (j * S::copiers + copier) + lane / 8;
                if (token >= round.present) break;
                const uint32_t to = stage + S::w_bytes + token * 128 + (lane % 8 ^ token % 8) * 16;
#pragma unroll
                for (int i = 0; i < StageGroups; ++i)
                    if (i < here) copy16(to + i * N * 128, from[j] + (n + i) * group_cols);
            }
            if (p.group_scales) {
#pragma unroll
                for (int j = 0; j < scales; ++j) {
                    const int i = 32 * (j * S::copiers + copier) + lane, group = i % StageGroups;
                    if (i / StageGroups < round.present && i < StageGroups * N && group < here)
                        copy4(scales_to + 4 * (group * N + i / StageGroups), scale_from[j] + n);
                }
            }
            if (token_scale && n + StageGroups >= all_groups) copy4(scales_to + 4 * own, token_scale);
            barrier_arrive_after_copies(full + 8 * slot);
            if (++slot == S::stages) slot = 0, parity ^= 1;
        }
    }
}

template <int N, int Groups, int StageGroups, bool ByTile>
__global__ void __launch_bounds__(Shape<N, Groups, StageGroups>::threads, 1)
    sm90_experts_fp8_kernel(const __grid_constant__ ProductArgs p) {
    using S = Shape<N, Groups, StageGroups>;
    extern __shared__ __align__(128) uint8_t shared_bytes[];
    const uint32_t at = shared_address(shared_bytes), base = (at + 1023u) & ~1023u;
    uint8_t* const shared = shared_bytes + (base - at);
    const uint32_t full = base + S::barriers_at, empty = full + 8 * S::stages;
    const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
    if (threadIdx.x == 0) {
        for (int s = 0; s < S::stages; ++s) {
            barrier_init(full + 8 * s, 1 + 32 * S::copiers);
            barrier_init(empty + 8 * s, 4 * Groups);
        }
        barrier_init_done();
    }
    if (p.overlap) {
        wait_for_previous();  // the previous kernel may have written `begin`
        overlap_next();
    }
    const Tables tables = experts::make_tables(p, reinterpret_cast<int*>(shared + S::tables_at), N);
    const int all_groups = (p.k + group_cols - 1) / group_cols;
    Rounds round(tables, (p.n + 7) / 8, S::row_tiles, N);
    if (warp >= 4 * Groups) return bring<N, Groups, StageGroups>(p, round, all_groups, base, warp - 4 * Groups, lane);

    const int group = warp / 4, row_blocks = (p.n + 127) / 128;
    constexpr uint32_t w_upper = 0x40000000u | StageGroups * fp8_tile_bytes / 16;
    uint32_t slot = 0, parity = 0;
#pragma unroll 1
    for (; round.more(); round.next()) {
        const int row = 8 * round.row + 16 * warp + g;
        const int past = min(p.n, 8 * (round.row + round.count));
        const RowFactors factors[2] = {{p, round.expert, min(row, p.n - 1)}, {p, round.expert, min(row + 8, p.n - 1)}};
        // Rounds begin and end between multiples of 64 or 128 rows: one block of 128.
        const float* tile_scales = nullptr;
        if constexpr (ByTile)
            tile_scales = p.tile_scales + (int64_t{round.expert} * row_blocks + round.row / 16) * all_groups;
        float acc[StageGroups][N / 2], total[N / 2];
#pragma unroll
        for (float& v : total) v = 0.0f;
#pragma unroll 1
        for (int n = 0; n < all_groups; n += StageGroups) {
            [[maybe_unused]] float of_rows[StageGroups];
            if constexpr (ByTile)
#pragma unroll
                for (int i = 0; i < StageGroups; ++i) of_rows[i] = __ldg(tile_scales + min(n + i, all_groups - 1));
            const uint32_t stage = base + slot * S::stage_bytes;
            barrier_wait(full + 8 * slot, parity);
            // The copy engine did not write the rows of x, but wgmma reads through the same proxy.
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            const uint32_t left = swizzled_operand(stage + group * 8 * StageGroups * fp8_tile_bytes);
            const uint32_t right = swizzled_operand(stage + S::w_bytes);
#pragma unroll
            for (int i = 0; i < StageGroups; ++i) {
                wgmma_fence();
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    WgmmaCodes<N, true>::run(acc[i], left + i * (fp8_tile_bytes / 16) + 2 * j,
                                             right + i * (N * 8) + 2 * j, w_upper, j > 0);
                wgmma_commit();
            }
            const float* of_inputs =
                reinterpret_cast<const float*>(shared + S::scales_at + slot * S::scale_bytes) + 2 * c;
            const auto finish = [&]<int I>(std::integral_constant<int, I>) {
                wgmma_wait<StageGroups - 1 - I>();
                pin(acc[I]);
                const bool exists = StageGroups == 1 || n + I < all_groups;  // otherwise the stage holds old data
#pragma unroll
                for (int i = 0; i < N / 8; ++i) {
                    [[maybe_unused]] float2 by{};
                    if constexpr (ByTile) {
                        by = *reinterpret_cast<const float2*>(of_inputs + I * N + 8 * i);
                        by.x *= of_rows[I], by.y *= of_rows[I];
                    }
#pragma unroll
                    for (int v = 4 * i; v < 4 * i + 4; ++v) {
                        const float sum =
                            ByTile ? fmaf(acc[I][v], v % 2 ? by.y : by.x, total[v]) : acc[I][v] + total[v];
                        total[v] = exists ? sum : total[v];
                    }
                }
            };
            [&]<int... I>(std::integer_sequence<int, I...>) { (finish(std::integral_constant<int, I>()), ...); }
            (std::make_integer_sequence<int, StageGroups>());
            if (n + StageGroups < all_groups) {
                __syncwarp();
                barrier_arrive_if(empty + 8 * slot, lane == 0);
                if (++slot == S::stages) slot = 0, parity ^= 1;
            }
        }
        // The last stage still holds the tokens' scales.
        const float* of_tokens = reinterpret_cast<const float*>(shared + S::scales_at + slot * S::scale_bytes);
#pragma unroll
        for (int i = 0; i < N / 8; ++i)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int token = 8 * i + 2 * c + e;
                if (token >= round.present) continue;
                const float of_token = p.token_scales ? of_tokens[token] : p.input_scale;
                float* to = p.y + (round.first + token) * p.y_stride + row;
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    if (row + 8 * h < past)
                        to[8 * h] =
                            product_output(total[4 * i + 2 * h + e], factors[h].scale * of_token, factors[h].bias);
            }
        __syncwarp();
        barrier_arrive_if(empty + 8 * slot, lane == 0);
        if (++slot == S::stages) slot = 0, parity ^= 1;
    }
}

template <int N, int Groups, int StageGroups>
struct Launcher {
    using S = Shape<N, Groups, StageGroups>;
    static constexpr auto plain = sm90_experts_fp8_kernel<N, Groups, StageGroups, false>;
    static constexpr auto by_tile = sm90_experts_fp8_kernel<N, Groups, StageGroups, true>;

    static cudaError_t prepare() {
        for (const auto kernel : {plain, by_tile})
            if (const cudaError_t code =
                    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::bytes(most_experts)))
                return code;
        return cudaSuccess;
    }
    static cudaError_t launch(const ProductArgs& p, int multiprocessors, cudaStream_t stream) {
        return launch_kernel(p.tile_scales ? by_tile : plain, dim3(static_cast<unsigned>(multiprocessors)), S::threads,
                             S::bytes(p.experts), p, stream);
    }
};

template <class Visit>
cudaError_t visit_tiles(int tokens, Visit visit) {
    switch (tokens) {
        case 8:
            return visit(Launcher<8, 1, 4>{});
        case 16:
            return visit(Launcher<16, 1, 4>{});
        case 32:
            return visit(Launcher<32, 1, 4>{});
        case 64:
            return visit(Launcher<64, 2, 2>{});
        case 128:
            return visit(Launcher<128, 2, 1>{});
        default:
            return cudaErrorInvalidValue;
    }
}

}  // namespace

cudaError_t launch_sm90_experts_fp8(const ProductArgs& args, int tile_tokens, int multiprocessors,
                                    cudaStream_t stream) {
    const int64_t tiles = int64_t{args.tokens} / tile_tokens + std::min(args.experts, args.tokens);
    if (args.experts > most_experts || tiles * ((args.n + 7) / 8) > INT_MAX) return cudaErrorInvalidValue;
    return visit_tiles(tile_tokens, [&](auto launcher) { return launcher.launch(args, multiprocessors, stream); });
}

cudaError_t prepare_sm90_experts_fp8() {
    for (const int tokens : fp8_experts_tiles)
        if (const cudaError_t code = visit_tiles(tokens, [](auto launcher) { return launcher.prepare(); })) return code;
    return cudaSuccess;
}

}  // namespace nibble::cuda
