// W4A16 for experts with few tokens each (tiles of eight), if all columns of two tiles of x fit into shared memory: a
// decoding step.
//
// A thread block per multiprocessor has an equal share of all pairs (tile of tokens, 16 rows). Its warps alternate and
// do not wait for each other: the whole x of a tile stays in shared memory while any warp uses it, and the next tile is
// loaded meanwhile. A warp processes a row tile and all of K; if there are few row tiles, four warps process two chunks
// each. Every warp fills its own ring buffer of weight records ahead of its computation; one more warp gathers the rows
// of x.
#include "kernels/cuda/matmul/w4a16/w4a16_experts.cuh"

#include <algorithm>

namespace nibble::cuda {
namespace {

using namespace experts;

constexpr int tile_tokens = 8, buffers = 2, stage_bytes = tile_tokens * x_row_bytes;

template <int Parts>
struct Few {
    static constexpr int chunks = matmul_chunks / Parts;
    static constexpr int warps = Parts > 1 ? 24 : 27, threads = 32 * (warps + 1), turn = warps / Parts;
    static constexpr int slots = 2;
    static constexpr int rings_bytes = warps * slots * w4a16::record_bytes;
    static constexpr int sums_bytes = Parts > 1 ? 2 * warps * 512 : 0;  // two buffers of [warp][16 rows][8 tokens]
    static constexpr int barriers_bytes = 8 * (2 * buffers + warps * slots);
    static constexpr int bytes(int records, int experts) {
        return buffers * records * stage_bytes + rings_bytes + sums_bytes + barriers_bytes + 8 * (experts + 1);
    }
};

// Row tiles of a thread block with stride `turn`.
struct Cursor {
    int tile, row, left, expert = 0;

    __device__ Cursor(const Tables& tables, int first, int last, int row_tiles)
        : tile(first / row_tiles), row(first % row_tiles), left(last - first) {
        if (more()) expert = tables.expert_of(tile);
    }
    __device__ bool more() const { return left > 0; }
    __device__ void next(const Tables& tables, int turn, int row_tiles) {
        row += turn, left -= turn;
        if (row < row_tiles) return;
        do row -= row_tiles, ++tile;
        while (row >= row_tiles);
        if (more()) expert = tables.expert_of(tile);
    }
};

__device__ void bring_x(const ExpertsArgs& args, const Tables& tables, int first_tile, int last_tile, uint32_t x_at,
                        uint32_t full, uint32_t empty, int lane) {
    int expert = tables.expert_of(first_tile);
    for (int tile = first_tile; tile <= last_tile; ++tile) {
        const int i = tile - first_tile, buffer = i % buffers;
        while (tile >= tables.before[expert + 1]) ++expert;
        const int first = tables.begin[expert] + (tile - tables.before[expert]) * tile_tokens;
        const int present = min(tables.begin[expert + 1] - first, tile_tokens);
        int source = first + lane;
        if (args.rows && lane < present) source = args.rows[first + lane];
        barrier_wait(empty + 8 * buffer, i / buffers + 1 & 1);
        for (int record = 0; record < args.row_records; ++record) {
            const int column = record * w4a16::record_cols + 8 * lane;
            const uint32_t to = x_at + (buffer * args.row_records + record) * stage_bytes + 16 * lane;
            // Slots of absent tokens keep old data: their columns are never stored.
#pragma unroll 4
            for (int t = 0; t < present; ++t) {
                const uint8_t* from = args.x + __shfl_sync(0xFFFFFFFFu, source, t) * args.x_stride;
                const bool inside = column < args.k;
                copy16_or_zero(to + t * x_row_bytes, inside ? from + 2 * column : from, inside);
            }
        }
        barrier_arrive_after_copies(full + 8 * buffer);
    }
}

template <int Parts>
__global__ void __launch_bounds__(Few<Parts>::threads, 1)
    experts_w4a16_m8_kernel(const __grid_constant__ ExpertsArgs args) {
    using F = Few<Parts>;
    extern __shared__ __align__(128) uint8_t shared[];
    const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const uint32_t base = shared_address(shared), rings = base + buffers * args.row_records * stage_bytes;
    const uint32_t sums_at = rings + F::rings_bytes, x_full = sums_at + F::sums_bytes, x_empty = x_full + 8 * buffers;
    const uint32_t barriers = x_empty + 8 * (buffers + warp * F::slots);
    const uint32_t ring = rings + warp * F::slots * w4a16::record_bytes;
    if (warp < F::warps && lane == 0) {
        for (int s = 0; s < F::slots; ++s) barrier_init(barriers + 8 * s, 1);
        barrier_init_done();
    }
    if (warp == F::warps && lane == 0) {
        for (int b = 0; b < buffers; ++b) {
            barrier_init(x_full + 8 * b, 32);
            barrier_init(x_empty + 8 * b, F::warps);
        }
        barrier_init_done();
    }
    // The next kernel starts only after this wait, so data it reads early is complete.
    if (args.overlap) {
        if (!args.early) wait_for_previous();
        overlap_next();
    }
    const uint32_t tables_at = x_empty + 8 * (buffers + F::warps * F::slots) - base;
    const Tables tables = make_tables(args, reinterpret_cast<int*>(shared + tables_at), tile_tokens);
    const uint32_t all = static_cast<uint32_t>(tables.before[args.experts]) * args.row_tiles;
    const auto share = [&](uint32_t block) {  // the first row tile of a thread block
        const uint32_t each = all / gridDim.x, more = all % gridDim.x;
        return static_cast<int>(each * block + min(block, more));
    };
    const int first = share(blockIdx.x), last = share(blockIdx.x + 1);
    if (first == last) return;
    const int first_tile = first / args.row_tiles, last_tile = (last - 1) / args.row_tiles;
    if (warp == F::warps) {
        if (args.overlap && args.early) wait_for_previous();
        return bring_x(args, tables, first_tile, last_tile, base, x_full, x_empty, lane);
    }

    const int mine = warp / Parts, part = warp % Parts, g = lane / 4, c = lane % 4;
    const int item_first = min(part * F::chunks * args.chunk_records, args.row_records);
    const int item_records = min((part + 1) * F::chunks * args.chunk_records, args.row_records) - item_first;
    Cursor ahead(tables, first + mine, last, args.row_tiles);
    const uint8_t* from = nullptr;
    int wanted = 0;
    uint32_t request_slot = 0;
    const auto request = [&] {
        if (wanted == 0) {
            if (item_records == 0 || !ahead.more()) return;
            from = args.records + ahead.expert * args.expert_bytes +
                   (int64_t{ahead.row} * args.row_records + item_first) * w4a16::record_bytes;
            wanted = item_records;
            ahead.next(tables, F::turn, args.row_tiles);
        }
        if (lane == 0) {
            barrier_expect(barriers + 8 * request_slot, w4a16::record_bytes);
            bulk_copy(ring + request_slot * w4a16::record_bytes, from, w4a16::record_bytes,
                      barriers + 8 * request_slot);
        }
        from += w4a16::record_bytes, --wanted;
        request_slot = request_slot + 1 == F::slots ? 0 : request_slot + 1;
    };
    for (int s = 0; s < F::slots; ++s) request();

    const ScaleBits scale_bits = args.scale_bits;
    uint32_t slot = 0, parity = 0;
    int sums_buffer = 0, at_tile = first_tile;
    const auto wait_for_x = [&](int tile) {
        const int i = tile - first_tile;
        barrier_wait(x_full + 8 * (i % buffers), i / buffers & 1);
    };
    // Marks all earlier tiles as done. Waits for tiles that were never read, so that their buffer's last round is over.
    const auto leave_tiles = [&](int below) {
        for (; at_tile < below; ++at_tile) {
            wait_for_x(at_tile);
            __syncwarp();
            barrier_arrive_if(x_empty + 8 * ((at_tile - first_tile) % buffers), lane == 0);
        }
    };
    float acc[1][4];
#pragma unroll 1
    for (Cursor now(tables, first + mine, last, args.row_tiles); now.more();
         now.next(tables, F::turn, args.row_tiles)) {
        leave_tiles(now.tile);
        const int first_slot = tables.begin[now.expert] + (now.tile - tables.before[now.expert]) * tile_tokens;
        const int present = min(tile_tokens, tables.begin[now.expert + 1] - first_slot);
        // The lane's outputs: rows g and g + 8 of the accumulators, or of the sums of parts.
        const Output output(args, now.expert, now.row * 16, Parts == 1 ? g : lane % 8);
        const uint8_t* x = shared + ((now.tile - first_tile) % buffers * args.row_records + item_first) * stage_bytes +
                           min(g, present - 1) * x_row_bytes + 32 * c;
        ChunkSums<1, F::chunks> sums_of_chunks;
        int record = 0;
        bool x_is_there = false;
#pragma unroll 1
        for (int chunk = 0; chunk < F::chunks; ++chunk) {
            const int end = min((chunk + 1) * args.chunk_records, item_records);
#pragma unroll
            for (float& v : acc[0]) v = 0.0f;
#pragma unroll 1
            for (; record < end; ++record) {
                barrier_wait(barriers + 8 * slot, parity);
                const uint8_t* at = shared + (ring - base) + slot * w4a16::record_bytes;
                const LaneRecord held(at, lane);
                loads_done();
                __syncwarp();
                request();
                parity ^= slot + 1 == F::slots;
                slot = slot + 1 == F::slots ? 0 : slot + 1;
                if (!x_is_there) wait_for_x(now.tile), x_is_there = true;
                multiply_record<1>(acc, held.codes, held.scales, scale_bits, x);
                x += stage_bytes;
            }
            sums_of_chunks.fold(acc, chunk);
        }
        if constexpr (Parts == 1) {
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (const int token = 2 * c + e; token < present)
                    output.store(first_slot + token, acc[0][e], acc[0][2 + e]);
        } else {
            float* sums =
                reinterpret_cast<float*>(shared + (sums_at - base)) + (sums_buffer * F::warps + mine * Parts) * 128;
            float2* own = reinterpret_cast<float2*>(sums + part * 128 + g * 8 + 2 * c);
            own[0] = {acc[0][0], acc[0][1]};
            own[32] = {acc[0][2], acc[0][3]};
            // With two buffers one barrier per iteration suffices: this buffer is written again only after the next
            // one.
            asm volatile("bar.sync %0, %1;" ::"r"(1 + mine), "n"(32 * Parts) : "memory");
            sums_buffer ^= 1;
            const int token = part * 4 + lane / 8, row = lane % 8;
            if (part < 2 && token < present) {
                float upper[Parts], lower[Parts];
#pragma unroll
                for (int p = 0; p < Parts; ++p) {
                    upper[p] = sums[p * 128 + row * 8 + token];
                    lower[p] = sums[p * 128 + (row + 8) * 8 + token];
                }
                output.store(first_slot + token, tree_sum(upper), tree_sum(lower));
            }
        }
    }
    leave_tiles(last_tile + 1);
}

constexpr int shared_limit = 227 * 1024;

template <int Parts>
cudaError_t launch(const ExpertsArgs& args, int blocks, cudaStream_t stream) {
    using F = Few<Parts>;
    // More than half of a multiprocessor's shared memory, so that with overlap thread blocks do not accumulate on a
    // few.
    const int bytes = std::max(F::bytes(args.row_records, args.experts), 120 * 1024);
    return launch_kernel(experts_w4a16_m8_kernel<Parts>, dim3(static_cast<unsigned>(blocks)), F::threads, bytes, args,
                         stream);
}

}  // namespace

bool fits_experts_w4a16_m8(int records, int experts) {
    return Few<1>::bytes(records, experts) <= shared_limit && Few<4>::bytes(records, experts) <= shared_limit;
}

cudaError_t launch_experts_w4a16_m8(const ExpertsArgs& args, int parts, int blocks, cudaStream_t stream) {
    return parts == 4   ? launch<4>(args, blocks, stream)
           : parts == 1 ? launch<1>(args, blocks, stream)
                        : cudaErrorInvalidValue;
}

cudaError_t prepare_experts_w4a16_m8() {
    for (const auto kernel : {experts_w4a16_m8_kernel<1>, experts_w4a16_m8_kernel<4>})
        if (const cudaError_t code =
                cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_limit))
            return code;
    return cudaSuccess;
}

}  // namespace nibble::cuda
