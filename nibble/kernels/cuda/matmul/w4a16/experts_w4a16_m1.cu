// W4A16 for the experts of one token. Their stacked rows are one matrix, and a thread block per multiprocessor has an
// equal share of its tiles, as in matmul_w4a16_m8_kernel. A warp processes one, two or four of the eight chunks of a
// tile's K. It requests its first two records as soon as the expert is known: at once for a mixture's second product.
// For the first product the block chooses the experts itself from the router's logits, which saves a launch and the
// sorting between the router and the weights. Other thread blocks of the launch may compute a dense product
// (ExpertsInput::dense), which does not wait for the choice.
#include "kernels/cuda/matmul/w4a16/w4a16_experts.cuh"
#include "kernels/cuda/primitives/route.cuh"

#include <algorithm>

namespace nibble::cuda {
namespace {

using namespace experts;

constexpr int slots = 2, most_warps = 32, shared_limit = 227 * 1024;

// Tiles [first, first + count) of a thread block. An integer division takes about 25 instructions per warp, which
// matters in a kernel of 15 us: the host divides what the launch knows, and tiles are counted from the first one's
// expert.
struct Share {
    int first, count;
    __device__ Share(const OneTokenArgs::Deal& deal, int block)
        : first(deal.each * block + min(block, deal.more)), count(deal.each + (block < deal.more)) {}
};

template <int ChunksPerWarp>
__global__ void __launch_bounds__(1024, 1)
    experts_w4a16_m1_kernel(const __grid_constant__ ExpertsArgs args, const __grid_constant__ OneTokenArgs one) {
    extern __shared__ __align__(128) uint8_t shared[];
    constexpr int warps_per_tile = matmul_chunks / ChunksPerWarp;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int warps = static_cast<int>(blockDim.x) / 32, g = lane / 4, c = lane % 4;
    const int x_pitch = args.row_records * (2 * w4a16::record_cols);
    const int x_bytes = max(one.x_rows * x_pitch, one.dense.row_records * (2 * w4a16::record_cols));
    const int rings_at = x_bytes, ring_at = rings_at + warp * slots * w4a16::record_bytes;
    const int barriers_at = rings_at + warps * slots * w4a16::record_bytes;
    const uint32_t base = shared_address(shared), barrier = base + barriers_at + 8 * slots * warp;
    const RouteSpace space(shared + barriers_at + 8 * slots * warps, args.experts);
    if (lane == 0) {
        for (int s = 0; s < slots; ++s) barrier_init(barrier + 8 * s, 1);
        barrier_init_done();
    }
    const int block = static_cast<int>(blockIdx.x);
    const bool dense = block >= one.expert_blocks;
    const Share share = dense ? Share(one.dense_deal, block - one.expert_blocks) : Share(one.expert_deal, block);
    const int row_tiles = dense ? one.dense.row_tiles : args.row_tiles;
    const int row_records = dense ? one.dense.row_records : args.row_records;
    const int chunk_records = dense ? one.dense.chunk_records : args.chunk_records;
    const int first_slot = dense ? 0 : share.first / row_tiles;
    // Returns the slot and row tile of one of the block's tiles.
    const auto place = [&](int tile, int& slot) {
        int row_tile = tile - first_slot * row_tiles;
        for (slot = first_slot; row_tile >= row_tiles; row_tile -= row_tiles) ++slot;
        return row_tile;
    };
    int last_slot;
    place(share.first + share.count - 1, last_slot);
    const bool one_row = dense || args.rows;
    const auto bring_x = [&] {  // one row for all experts, or the rows of the block's experts
        const uint8_t* x = dense ? one.dense.x : args.x;
        const int rows = one_row ? 1 : last_slot - first_slot + 1, pieces = row_records * (w4a16::record_cols / 8);
        const int k = dense ? one.dense.k : args.k;
        for (int row = 0; row < rows; ++row) {
            const uint8_t* from = x + (one_row ? 0 : first_slot + row) * args.x_stride;
            for (int i = static_cast<int>(threadIdx.x); i < pieces; i += static_cast<int>(blockDim.x)) {
                const bool inside = 8 * i < k;
                copy16_or_zero(base + row * x_pitch + 16 * i, inside ? from + 16 * i : from, inside);
            }
        }
    };
    // The next kernel starts only after this wait, so data it reads early is complete.
    const bool ahead = args.early || dense;
    if (args.overlap) {
        if (!ahead) wait_for_previous();
        overlap_next();
    }
    if (!ahead) bring_x();
    if (dense) {
        __syncthreads();
    } else if (one.choose) {
        choose_experts(one.route, space);
        if (block == 0 && one.sort.begin) publish_choice(one.route, one.sort, space);
    } else {
        if (threadIdx.x < one.route.top_k) space.chosen[threadIdx.x] = one.route.experts[threadIdx.x];
        __syncthreads();
    }

    int slot;
    const int row_tile = place(share.first + warp / warps_per_tile, slot);
    slot = min(slot, last_slot);
    const bool works = warp / warps_per_tile < share.count;
    const int first = min(warp % warps_per_tile * ChunksPerWarp * chunk_records, row_records);
    const int count = works ? min(ChunksPerWarp * chunk_records, row_records - first) : 0;
    const uint8_t* records = dense ? one.dense.records : args.records + space.chosen[slot] * args.expert_bytes;
    const uint8_t* from = records + (int64_t{row_tile} * row_records + first) * w4a16::record_bytes;
    const auto request = [&](int i, uint32_t s) {
        barrier_expect(barrier + 8 * s, w4a16::record_bytes);
        bulk_copy(base + ring_at + s * w4a16::record_bytes, from + int64_t{i} * w4a16::record_bytes,
                  w4a16::record_bytes, barrier + 8 * s);
    };
    if (lane == 0)
        for (int s = 0; s < min(slots, count); ++s) request(s, s);
    if (ahead) {
        if (args.overlap) wait_for_previous();
        bring_x();
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();

    const uint8_t* x = shared + (one_row ? 0 : slot - first_slot) * x_pitch + first * (2 * w4a16::record_cols) + 32 * c;
    const ScaleBits scale_bits = dense ? one.dense.scale_bits : args.scale_bits;
    float part[ChunksPerWarp][2];
    int i = 0;
    uint32_t at = 0, parity = 0;
#pragma unroll
    for (int p = 0; p < ChunksPerWarp; ++p) {
        float acc[1][4] = {};
        const int end = min((p + 1) * chunk_records, count);
#pragma unroll 1
        for (; i < end; ++i) {
            barrier_wait(barrier + 8 * at, parity);
            const uint8_t* record = shared + ring_at + at * w4a16::record_bytes;
            const LaneRecord held(record, lane);
            loads_done();
            __syncwarp();
            if (lane == 0 && i + slots < count) request(i + slots, at);
            if (++at == slots) at = 0, parity ^= 1;
            multiply_record<1>(acc, held.codes, held.scales, scale_bits, x);
            x += 2 * w4a16::record_cols;
        }
        part[p][0] = acc[0][0], part[p][1] = acc[0][2];
    }
    // Sums [chunk][16 rows] overwrite the warp's first slot, which is no longer filled; every column has them.
    __syncwarp();
    if (c == 0) {
        float* own = reinterpret_cast<float*>(shared + ring_at);
#pragma unroll
        for (int p = 0; p < ChunksPerWarp; ++p) own[16 * p + g] = part[p][0], own[16 * p + g + 8] = part[p][1];
    }
    __syncthreads();
    for (int o = static_cast<int>(threadIdx.x); o < 8 * share.count; o += static_cast<int>(blockDim.x)) {
        int own_slot;
        const int own_tile = place(share.first + o / 8, own_slot), row = own_tile * 16 + o % 8;
        float upper[matmul_chunks], lower[matmul_chunks];
#pragma unroll
        for (int p = 0; p < matmul_chunks; ++p) {
            const auto* sums = reinterpret_cast<const float*>(
                shared + rings_at + (o / 8 * warps_per_tile + p / ChunksPerWarp) * (slots * w4a16::record_bytes));
            upper[p] = sums[16 * (p % ChunksPerWarp) + o % 8], lower[p] = sums[16 * (p % ChunksPerWarp) + o % 8 + 8];
        }
        if (dense) {
            if (row < one.dense.n) one.dense.y[row] = w4a16_output(tree_sum(upper), one.dense.factors, row);
            if (row + 8 < one.dense.n) one.dense.y[row + 8] = w4a16_output(tree_sum(lower), one.dense.factors, row + 8);
            continue;
        }
        const Output output(args, space.chosen[own_slot], own_tile * 16, o % 8);
        output.store(own_slot, tree_sum(upper), tree_sum(lower));
    }
}

template <int ChunksPerWarp>
cudaError_t launch(const ExpertsArgs& args, const OneTokenArgs& one, int blocks, int warps, int bytes,
                   cudaStream_t stream) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(blocks);
    config.blockDim = static_cast<unsigned>(32 * warps);
    config.dynamicSmemBytes = static_cast<size_t>(bytes);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = args.overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, experts_w4a16_m1_kernel<ChunksPerWarp>, args, one);
}

struct OneShape {
    int expert_blocks, dense_blocks = 0, chunks_per_warp = 1, warps, x_rows, bytes;

    OneShape(const ExpertsArgs& args, const OneTokenArgs& one, int multiprocessors) {
        const int all = one.route.top_k * args.row_tiles;
        // Number of thread blocks by the number of records.
        const int64_t records = int64_t{all} * args.row_records;
        const int64_t dense_records = int64_t{one.dense.row_tiles} * one.dense.row_records;
        if (dense_records > 0)
            dense_blocks = std::clamp(static_cast<int>(dense_records * multiprocessors / (records + dense_records)), 1,
                                      std::min(multiprocessors - 1, one.dense.row_tiles));
        expert_blocks = std::min(all, multiprocessors - dense_blocks);
        int tiles = (all + expert_blocks - 1) / expert_blocks;
        if (dense_blocks > 0) tiles = std::max(tiles, (one.dense.row_tiles + dense_blocks - 1) / dense_blocks);
        while (tiles * (matmul_chunks / chunks_per_warp) > most_warps && chunks_per_warp < 4) chunks_per_warp *= 2;
        warps = tiles * (matmul_chunks / chunks_per_warp);
        x_rows = args.rows ? 1 : std::min(one.route.top_k, (tiles - 1) / args.row_tiles + 2);
        const int x = std::max(x_rows * args.row_records, one.dense.row_records) * 2 * w4a16::record_cols;
        bytes = x + warps * slots * (w4a16::record_bytes + 8) + RouteSpace::bytes(args.experts);
        // More than half of a multiprocessor's shared memory, so that with overlap thread blocks do not accumulate on a
        // few.
        bytes = std::max(bytes, 120 * 1024);
    }
};

}  // namespace

bool fits_experts_w4a16_m1(const ExpertsArgs& args, const OneTokenArgs& one, int multiprocessors) {
    const OneShape shape(args, one, multiprocessors);
    return shape.warps <= most_warps && shape.bytes <= shared_limit;
}

cudaError_t launch_experts_w4a16_m1(const ExpertsArgs& args, OneTokenArgs one, int multiprocessors,
                                    cudaStream_t stream) {
    const OneShape shape(args, one, multiprocessors);
    one.x_rows = shape.x_rows, one.expert_blocks = shape.expert_blocks;
    const auto deal = [](int all, int blocks) {
        return blocks > 0 ? OneTokenArgs::Deal{all / blocks, all % blocks} : OneTokenArgs::Deal{};
    };
    one.expert_deal = deal(one.route.top_k * args.row_tiles, shape.expert_blocks);
    one.dense_deal = deal(one.dense.row_tiles, shape.dense_blocks);
    const auto go = [&](auto launch) {
        return launch(args, one, shape.expert_blocks + shape.dense_blocks, shape.warps, shape.bytes, stream);
    };
    switch (shape.chunks_per_warp) {
        case 1:
            return go(launch<1>);
        case 2:
            return go(launch<2>);
        case 4:
            return go(launch<4>);
        default:
            return cudaErrorInvalidValue;
    }
}

cudaError_t prepare_experts_w4a16_m1() {
    for (const auto kernel : {experts_w4a16_m1_kernel<1>, experts_w4a16_m1_kernel<2>, experts_w4a16_m1_kernel<4>})
        if (const cudaError_t code = allow_shared_memory(kernel, shared_limit)) return code;
    return cudaSuccess;
}

}  // namespace nibble::cuda
