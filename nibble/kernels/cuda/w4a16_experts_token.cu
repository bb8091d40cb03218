// W4A16 for the experts of one token, in thread blocks of half a multiprocessor: see w4a16_token.cuh. Every thread block
// has an even share of the experts' tiles and, in a mixture's first product, of a plain one beside it
// (ExpertsInput::beside), whose records are on the way before the experts are known: of the first product every thread
// block chooses them itself from the router's logits, which takes a launch and its sorting from between the router and
// the weights; of the second one it does so while the first still runs.
//
// Combine: the second product with the weighted sum of its experts (moe.cu's combine_kernel). A cluster of two thread
// blocks has all experts' rows of some row tiles, each block half of the experts; the first one adds.
#include "kernels/cuda/route.cuh"
#include "kernels/cuda/trace.cuh"
#include "kernels/cuda/w4a16_token.cuh"

#include <algorithm>
#include <cstdlib>

namespace nibble::cuda {
namespace {

using namespace experts;
using token::Cursor, token::Divisor, token::Ring, token::Share, token::Unit;

constexpr int record_x_bytes = 2 * w4a16::record_cols;

// Shared memory: x of the experts, x of the plain product, rings and their barriers, sums, what choosing takes, outputs
// to combine.
template <int Slots, bool Combine>
__global__ void __launch_bounds__(token::most_threads, 1)
    experts_kernel(const __grid_constant__ ExpertsArgs args, const __grid_constant__ OneTokenArgs one) {
    extern __shared__ __align__(128) uint8_t shared[];
    TRACE_SPACE
    TRACE(0);
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const int warp = thread / 32, lane = thread % 32, warps = threads / 32;
    const int rank = Combine ? static_cast<int>(blockIdx.x) % 2 : 0;
    const int group = static_cast<int>(blockIdx.x) / (Combine ? 2 : 1), groups = one.expert_blocks;
    const int top_k = one.route.top_k, half = (top_k + 1) / 2;
    // Combined: own.count row tiles of every expert of the block's; else the tiles of all experts one after the other.
    const Share own(Combine ? args.row_tiles : top_k * args.row_tiles, group, groups);
    const int first_slot = Combine ? rank * half : own.first / args.row_tiles;
    const int slots = Combine ? (rank ? top_k - half : half) : (own.first + own.count - 1) / args.row_tiles + 1 - first_slot;
    const int column = Combine ? own.count : args.row_tiles;  // tiles from one expert to the next
    const int first_tile = own.first - (Combine ? 0 : first_slot * args.row_tiles);
    const int tiles = Combine ? slots * own.count : own.count;
    const Share dense = one.dense.row_tiles ? Share(one.dense.row_tiles, groups - 1 - group, groups) : Share(0, 0, 1);
    const int dense_units = dense.count * one.dense_active, units = dense_units + tiles * one.active;

    const int x_pitch = args.row_records * record_x_bytes, dense_x = one.x_rows * x_pitch;
    const int rings_at = dense_x + one.dense.row_records * record_x_bytes;
    const int sums_at = rings_at + warps * Ring<Slots>::bytes, space_at = sums_at + 64 * one.units;
    const uint32_t base = shared_address(shared);
    const Ring<Slots> ring(base + rings_at, warp, warps);
    auto* const sums = reinterpret_cast<float*>(shared + sums_at);
    const RouteSpace space(shared + space_at, args.experts);
    const bool one_row = !Combine && args.rows;

    const Divisor by_active(one.active), by_dense(one.dense.row_tiles ? one.dense_active : 1);
    // The slot (from first_slot) and row tile of a tile of the block's.
    const auto place = [&](int tile, int& slot) {
        slot = 0;
        if constexpr (!Combine) tile += first_tile;
        for (; tile >= column; tile -= column) ++slot;
        return Combine ? first_tile + tile : tile;
    };
    const auto locate = [&](int unit) {
        if (unit < dense_units) {
            const int tile = by_dense.quotient(unit), first = (unit - tile * one.dense_active) * one.dense.chunk_records;
            return Unit{one.dense.records +
                            (int64_t{dense.first + tile} * one.dense.row_records + first) * w4a16::record_bytes,
                        min(one.dense.chunk_records, one.dense.row_records - first),
                        static_cast<uint32_t>(dense_x + first * record_x_bytes)};
        }
        unit -= dense_units;
        const int tile = by_active.quotient(unit), first = (unit - tile * one.active) * args.chunk_records;
        int slot;
        const int row_tile = place(tile, slot);
        return Unit{args.records + space.chosen[first_slot + slot] * args.expert_bytes +
                        (int64_t{row_tile} * args.row_records + first) * w4a16::record_bytes,
                    min(args.chunk_records, args.row_records - first),
                    static_cast<uint32_t>((one_row ? 0 : slot * x_pitch) + first * record_x_bytes)};
    };
    const auto bring = [&](const uint8_t* x, int64_t stride, int rows, int records, int k, int to) {
        const int pieces = records * (w4a16::record_cols / 8);
        for (int i = thread; i < rows * pieces; i += threads) {
            const int row = i / pieces, at = 8 * (i % pieces);
            const uint8_t* from = x + row * stride;
            const bool inside = at < k;
            copy16_or_zero(base + to + row * (records * record_x_bytes) + 2 * at, inside ? from + 2 * at : from, inside);
        }
    };
    const auto bring_x = [&] {
        bring(args.x + (one_row ? 0 : first_slot * args.x_stride), args.x_stride, one_row ? 1 : slots, args.row_records,
              args.k, 0);
        if (dense.count > 0) bring(one.dense.x, 0, 1, one.dense.row_records, one.dense.k, dense_x);
    };

    Cursor cursor(warp, warps);
    uint32_t asked = 0;
    if (lane == 0) {
        ring.init();
        for (; asked < Slots && cursor.find(warps, dense_units, locate); ++asked) cursor.request(ring, asked);
    }
    // The next kernel starts only after this one has waited: what it may then read early is complete.
    if (args.overlap) {
        if (!args.early) wait_for_previous();
        overlap_next();
    }
    TRACE(1);
    if (!args.early) bring_x();
    if (one.choose) {
        choose_experts(one.route, space);
        if (blockIdx.x == 0 && one.sort.begin) publish_choice(one.route, one.sort, space);
    } else {
        if (thread < top_k) space.chosen[thread] = one.route.experts[thread];
        __syncthreads();
    }
    if (lane == 0)
        for (; asked < Slots && cursor.find(warps, units, locate); ++asked) cursor.request(ring, asked);
    if (args.early) {
        if (args.overlap) wait_for_previous();
        bring_x();
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    TRACE(2);
    token::multiply_units(
        ring, cursor, shared, base, warp, warps, units, locate,
        [&](int unit) { return unit < dense_units ? one.dense.scale_bits : args.scale_bits; }, sums);
    TRACE(3);
    __syncthreads();
    TRACE(4);

    for (int o = thread; o < 16 * dense.count; o += threads)
        if (const int row = 16 * dense.first + o; row < one.dense.n)
            one.dense.y[row] = w4a16_output(
                token::row_sum(sums, o / 16 * one.dense_active, one.dense_active, o % 16), one.dense.factors, row);
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
                const float beside = one.combine.shared ? one.combine.shared[out] : 0.0f;
                float sum = 0.0f;
                for (int k = 0; k < top_k; ++k) {
                    const float value = k < half ? values[k * rows + row]
                                                 : cluster_float(shared_address(values + (k - half) * rows + row), 1);
                    sum += one.combine.weights[k] * value;
                }
                sum = rounded(sum);
                one.combine.sum[out] = one.combine.shared ? rounded(sum + rounded(beside)) : sum;
            }
        cluster_sync();  // nobody leaves while its values are read
    } else {
        for (int o = thread; o < 8 * own.count; o += threads) {
            int slot;
            const int row_tile = place(o / 8, slot), first = dense_units + o / 8 * one.active;
            const Output output(args, space.chosen[first_slot + slot], row_tile * 16, o % 8);
            output.store(first_slot + slot, token::row_sum(sums, first, one.active, o % 8),
                         token::row_sum(sums, first, one.active, o % 8 + 8));
        }
    }
    TRACE_END(blockIdx.x, Combine ? 3 : args.early ? 2 : 1);
}

struct Grid {
    // Half of what a multiprocessor has; three on one would be two of the same kernel.
    static constexpr int half = 112 * 1024, third = 76 * 1024, full = 227 * 1024 - 256;
    int blocks, warps = 16, slots, bytes;

    Grid(const ExpertsArgs& args, OneTokenArgs& one, int multiprocessors) {
        const bool combine = one.combine.sum;
        const int top_k = one.route.top_k, all = combine ? args.row_tiles : top_k * args.row_tiles;
        const auto ceil = [](int a, int b) { return (a + b - 1) / b; };
        one.expert_blocks = std::min(all, combine ? multiprocessors / 2 : multiprocessors);
        if (const char* w = std::getenv("NIBBLE_WE")) warps = std::atoi(w);
        const int half = warps > 16 ? full : Grid::half, third = warps > 16 ? 120 * 1024 : Grid::third;
        blocks = one.expert_blocks * (combine ? 2 : 1);
        const int tiles = ceil(all, one.expert_blocks) * (combine ? (top_k + 1) / 2 : 1);
        one.active = ceil(args.row_records, args.chunk_records);
        one.dense_active = one.dense.row_tiles ? ceil(one.dense.row_records, one.dense.chunk_records) : 0;
        one.units = tiles * one.active + ceil(one.dense.row_tiles, one.expert_blocks) * one.dense_active;
        one.x_rows = combine     ? (top_k + 1) / 2
                     : args.rows ? 1
                                 : std::min(top_k, (tiles - 1) / args.row_tiles + 2);
        one.route_bytes = (RouteSpace::bytes(args.experts) + 15) / 16 * 16;
        const int rest = (one.x_rows * args.row_records + one.dense.row_records) * record_x_bytes + 64 * one.units +
                         one.route_bytes + (combine ? tiles * 64 : 0);
        const int each = ceil(one.units, warps) * std::max(args.chunk_records, one.dense.chunk_records);
        slots = std::clamp((half - rest) / token_ring_bytes(warps, 1), 0, std::min(each, 3));
        bytes = std::max(rest + token_ring_bytes(warps, slots), third);
    }
    bool fits() const { return slots > 0; }
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
    return cudaLaunchKernelEx(&config, experts_kernel<Slots, Combine>, args, one);
}
template <int Slots>
cudaError_t launch(const ExpertsArgs& args, const OneTokenArgs& one, const Grid& grid, cudaStream_t stream) {
    return one.combine.sum ? launch<Slots, true>(args, one, grid, stream)
                           : launch<Slots, false>(args, one, grid, stream);
}

}  // namespace

TRACE_DUMP(experts)

bool fits_token_experts(const ExpertsArgs& args, OneTokenArgs one, int multiprocessors) {
    return Grid(args, one, multiprocessors).fits();
}

cudaError_t launch_token_experts(const ExpertsArgs& args, OneTokenArgs one, int multiprocessors, cudaStream_t stream) {
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

cudaError_t prepare_token_experts() {
    for (const auto kernel : {experts_kernel<1, false>, experts_kernel<2, false>, experts_kernel<3, false>,
                              experts_kernel<1, true>, experts_kernel<2, true>, experts_kernel<3, true>}) {
        if (const cudaError_t code =
                cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Grid::full))
            return code;
        if (const cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                                          cudaSharedmemCarveoutMaxShared))
            return code;
    }
    return cudaSuccess;
}

}  // namespace nibble::cuda
