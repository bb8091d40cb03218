// W4A16 for the experts of one token, with work in units (w4a16_units.cuh). For a mixture's first product every thread
// block chooses the experts from the router's logits, like experts_w4a16_m1_kernel of experts_w4a16_m1.cu, which
// handles mixtures with an additional dense product (its records would wait in the same ring buffers).
//
// Combine: the second product including the weighted sum of its experts (moe_combine_kernel of moe.cu), for rows with
// empty chunks. A cluster of two thread blocks has all experts' rows of some row tiles, each block half of the experts;
// the first one adds. It chooses its experts again and requests their records while the first product still runs.
#include "kernels/cuda/matmul/w4a16/w4a16_units.cuh"
#include "kernels/cuda/primitives/route.cuh"

#include <algorithm>

namespace nibble::cuda {
namespace {

using namespace experts;
using token::Cursor, token::Divisor, token::Ring, token::Share, token::Unit;

constexpr int most_warps = 16, record_x_bytes = 2 * w4a16::record_cols;

// Shared memory: x, ring buffers and their barriers, sums, scratch of the choice, outputs to combine.
template <int Slots, bool Combine>
__global__ void __launch_bounds__(32 * most_warps, 2)
    experts_w4a16_m1_units_kernel(const __grid_constant__ ExpertsArgs args, const __grid_constant__ OneTokenArgs one) {
    extern __shared__ __align__(128) uint8_t shared[];
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const int warp = thread / 32, lane = thread % 32, warps = threads / 32;
    const int rank = Combine ? static_cast<int>(blockIdx.x) % 2 : 0;
    const int group = static_cast<int>(blockIdx.x) / (Combine ? 2 : 1), groups = one.expert_blocks;
    const int top_k = one.route.top_k, half = (top_k + 1) / 2;
    // Combined: own.count row tiles of each of the block's experts; else the tiles of all experts in order.
    const Share own(Combine ? args.row_tiles : top_k * args.row_tiles, group, groups);
    const int first_slot = Combine ? rank * half : own.first / args.row_tiles;
    const int slots =
        Combine ? (rank ? top_k - half : half) : (own.first + own.count - 1) / args.row_tiles + 1 - first_slot;
    const int column = Combine ? own.count : args.row_tiles;  // tiles per expert
    const int first_tile = own.first - (Combine ? 0 : first_slot * args.row_tiles);
    const int tiles = Combine ? slots * own.count : own.count;
    const int units = tiles * one.active;

    const int x_pitch = args.row_records * record_x_bytes, rings_at = one.x_rows * x_pitch;
    const int sums_at = rings_at + warps * Ring<Slots>::bytes, space_at = sums_at + 64 * one.units;
    const uint32_t base = shared_address(shared);
    const Ring<Slots> ring(base + rings_at, warp, warps);
    auto* const sums = reinterpret_cast<float*>(shared + sums_at);
    const RouteSpace space(shared + space_at, args.experts);

    const Divisor by_active(one.active);
    // Returns the slot (relative to first_slot) and row tile of one of the block's tiles.
    const auto place = [&](int tile, int& slot) {
        slot = 0;
        if constexpr (!Combine) tile += first_tile;
        for (; tile >= column; tile -= column) ++slot;
        return Combine ? first_tile + tile : tile;
    };
    const auto locate = [&](int unit) {
        const int tile = by_active.quotient(unit), first = (unit - tile * one.active) * args.chunk_records;
        int slot;
        const int row_tile = place(tile, slot);
        return Unit{args.records + space.chosen[first_slot + slot] * args.expert_bytes +
                        (int64_t{row_tile} * args.row_records + first) * w4a16::record_bytes,
                    min(args.chunk_records, args.row_records - first),
                    static_cast<uint32_t>((Combine ? slot * x_pitch : 0) + first * record_x_bytes)};
    };
    const auto bring_x = [&] {  // one row for all experts, or one row for each of the block's
        const int rows = Combine ? slots : 1, pieces = args.row_records * (w4a16::record_cols / 8);
        for (int i = thread; i < rows * pieces; i += threads) {
            const int row = i / pieces, at = 8 * (i % pieces);
            const uint8_t* from = args.x + (Combine ? first_slot + row : 0) * args.x_stride;
            const bool inside = at < args.k;
            copy16_or_zero(base + row * x_pitch + 2 * at, inside ? from + 2 * at : from, inside);
        }
    };

    Cursor cursor(warp, warps);
    if (lane == 0) ring.init();
    // The next kernel starts only after this wait, so data it reads early is complete.
    if (args.overlap) {
        if (!args.early) wait_for_previous();
        overlap_next();
    }
    if (!args.early) bring_x();
    if (one.choose) {
        choose_experts(one.route, space);
        if (blockIdx.x == 0 && one.sort.begin) publish_choice(one.route, one.sort, space);
    } else {
        if (thread < top_k) space.chosen[thread] = one.route.experts[thread];
        __syncthreads();
    }
    if (lane == 0)
        for (uint32_t s = 0; s < Slots && cursor.find(warps, units, locate); ++s) cursor.request(ring, s);
    if (args.early) {
        if (args.overlap) wait_for_previous();
        bring_x();
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    token::multiply_units(ring, cursor, shared, base, warp, warps, units, locate, args.scale_bits, sums);
    __syncthreads();

    if constexpr (Combine) {
        // [slot][row], rounded.
        auto* const values = reinterpret_cast<float*>(shared + space_at + one.route_bytes);
        const int rows = 16 * own.count;
        for (int o = thread; o < slots * rows; o += threads) {
            const int slot = o / rows, row = o % rows, out = 16 * own.first + row;
            if (out >= args.n) continue;
            const Output output(args, space.chosen[first_slot + slot], out, 0);
            values[o] = rounded(output.value(
                token::row_sum(sums, (slot * own.count + row / 16) * one.active, one.active, row % 16), 0));
        }
        cluster_sync();
        if (rank == 0)
            for (int row = thread; row < rows; row += threads) {
                const int out = 16 * own.first + row;
                if (out >= args.n) break;
                const float shared_sum = one.combine.shared ? one.combine.shared[out] : 0.0f;
                float sum = 0.0f;
                for (int k = 0; k < top_k; ++k) {
                    const float value = k < half ? values[k * rows + row]
                                                 : cluster_float(shared_address(values + (k - half) * rows + row), 1);
                    sum += one.combine.weights[k] * value;
                }
                sum = rounded(sum);
                one.combine.sum[out] = one.combine.shared ? rounded(sum + rounded(shared_sum)) : sum;
            }
        cluster_sync();  // keeps shared memory alive until the other block has read it
    } else {
        for (int o = thread; o < 8 * own.count; o += threads) {
            int slot;
            const int row_tile = place(o / 8, slot), first = o / 8 * one.active;
            const Output output(args, space.chosen[first_slot + slot], row_tile * 16, o % 8);
            output.store(first_slot + slot, token::row_sum(sums, first, one.active, o % 8),
                         token::row_sum(sums, first, one.active, o % 8 + 8));
        }
    }
}

struct Grid {
    // Two thread blocks fit on a multiprocessor; with three, two would belong to the same kernel.
    static constexpr int half = 112 * 1024, third = 76 * 1024, most_slots = 3;
    int blocks, warps = most_warps, slots, bytes;

    Grid(const ExpertsArgs& args, OneTokenArgs& one, int multiprocessors) {
        const bool combine = one.combine.sum;
        const int top_k = one.route.top_k, all = combine ? args.row_tiles : top_k * args.row_tiles;
        const auto ceil = [](int a, int b) { return (a + b - 1) / b; };
        one.expert_blocks = std::min(all, combine ? multiprocessors / 2 : multiprocessors);
        blocks = one.expert_blocks * (combine ? 2 : 1);
        const int tiles = ceil(all, one.expert_blocks) * (combine ? (top_k + 1) / 2 : 1);
        one.active = ceil(args.row_records, args.chunk_records);
        one.units = tiles * one.active;
        one.x_rows = combine ? (top_k + 1) / 2 : 1;
        one.route_bytes = (RouteSpace::bytes(args.experts) + 15) / 16 * 16;
        const int rest = one.x_rows * args.row_records * record_x_bytes + 64 * one.units + one.route_bytes +
                         (combine ? tiles * 64 : 0);
        const int each = ceil(one.units, warps) * args.chunk_records;
        slots = std::clamp((half - rest) / token_ring_bytes(warps, 1), 0, std::min(each, most_slots));
        bytes = std::max(rest + token_ring_bytes(warps, slots), third);
    }
};

template <int Slots, bool Combine>
cudaError_t launch(const ExpertsArgs& args, const OneTokenArgs& one, const Grid& grid, cudaStream_t stream) {
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {Combine ? 2u : 1u, 1, 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(grid.blocks);
    config.blockDim = static_cast<unsigned>(32 * grid.warps);
    config.dynamicSmemBytes = static_cast<size_t>(grid.bytes);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = args.overlap ? 2 : 1;
    return cudaLaunchKernelEx(&config, experts_w4a16_m1_units_kernel<Slots, Combine>, args, one);
}
template <int Slots>
cudaError_t launch(const ExpertsArgs& args, const OneTokenArgs& one, const Grid& grid, cudaStream_t stream) {
    return one.combine.sum ? launch<Slots, true>(args, one, grid, stream)
                           : launch<Slots, false>(args, one, grid, stream);
}

}  // namespace

bool fits_experts_w4a16_m1_units(const ExpertsArgs& args, OneTokenArgs one, int multiprocessors) {
    const Grid grid(args, one, multiprocessors);
    return grid.slots > 0 && (one.combine.sum ? one.active < matmul_chunks : args.rows && one.dense.row_tiles == 0);
}

cudaError_t launch_experts_w4a16_m1_units(const ExpertsArgs& args, OneTokenArgs one, int multiprocessors,
                                          cudaStream_t stream) {
    const Grid grid(args, one, multiprocessors);
    switch (grid.slots) {
        case 1:
            return launch<1>(args, one, grid, stream);
        case 2:
            return launch<2>(args, one, grid, stream);
        case 3:
            return launch<3>(args, one, grid, stream);
        default:
            return cudaErrorInvalidValue;
    }
}

cudaError_t prepare_experts_w4a16_m1_units() {
    for (const auto kernel : {experts_w4a16_m1_units_kernel<1, false>, experts_w4a16_m1_units_kernel<2, false>,
                              experts_w4a16_m1_units_kernel<3, false>, experts_w4a16_m1_units_kernel<1, true>,
                              experts_w4a16_m1_units_kernel<2, true>, experts_w4a16_m1_units_kernel<3, true>})
        if (const cudaError_t code = allow_shared_memory(kernel, Grid::half)) return code;
    return cudaSuccess;
}

}  // namespace nibble::cuda
