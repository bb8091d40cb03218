// W4A16 for the experts of a mixture in tiles of 8 to 64 tokens, for cases that neither experts_w4a16_m8.cu (few
// tokens, a decoding step) nor sm90_experts_w4a16.cu (Hopper, more than four tokens per expert) handles.
//
// A thread block per multiprocessor has an equal share of all pairs (tile of tokens, 16 rows) and processes it in
// rounds: as many row tiles of one tile of tokens as it has warps. A warp processes a row tile and all of K. Every warp
// fills its own ring buffer of weight records, rounds ahead of its computation; one more warp gathers the rows of x, in
// stages of 256 columns, for all of them. Nothing drains between rounds or experts.
//
// Sums: as in matmul(), one accumulator per chunk from zero, then pairwise; waiting sums are in registers. Tiles of 32
// tokens (15 warps, 60 bytes of sums spilled) were removed: inside models they gave different bits from run to run,
// before loads_done() preceded the refill of a slot.
#include "kernels/cuda/matmul/w4a16/w4a16_experts.cuh"

namespace nibble::cuda {
namespace {

using namespace experts;

template <int Tiles>  // tiles of eight tokens
struct Experts {
    static constexpr int tokens = 8 * Tiles;
    // One less than a multiple of four, because one warp loads x: registers are allocated per four warps.
    static constexpr int warps = Tiles == 1 ? 27 : Tiles == 2 ? 15 : 7;
    static constexpr int threads = 32 * (warps + 1);
    static constexpr int stage_bytes = tokens * x_row_bytes;
    static constexpr int stages = Tiles == 1 ? 8 : Tiles == 2 ? 6 : 4;
    static constexpr int slots = Tiles == 1 ? 3 : 4;
    static constexpr int rings_at = stages * stage_bytes;
    static constexpr int barriers_at = rings_at + warps * slots * w4a16::record_bytes;
    static constexpr int tables_at = barriers_at + 8 * (2 * stages + warps * slots);
    static constexpr int bytes(int experts) { return tables_at + 8 * (experts + 1); }
    static_assert(bytes(1024) <= 227 * 1024 && bytes(1) > 114 * 1024);
};

// The rounds of a thread block: row tiles [row, row + count) of one tile of tokens.
struct Rounds {
    int tile, row, left, expert = 0, count = 0;

    __device__ Rounds(const Tables& tables, int first, int last, int row_tiles, int most)
        : tile(first / row_tiles), row(first % row_tiles), left(last - first) {
        if (more()) expert = tables.expert_of(tile);
        count = min(min(most, row_tiles - row), left);
    }
    __device__ bool more() const { return left > 0; }
    __device__ void next(const Tables& tables, int row_tiles, int most) {
        row += count, left -= count;
        if (row == row_tiles) {
            row = 0, ++tile;
            if (more()) expert = tables.expert_of(tile);
        }
        count = min(min(most, row_tiles - row), left);
    }
};

template <int Tiles>
__device__ void bring_x(const ExpertsArgs& args, const Tables& tables, Rounds round, int most, uint32_t x_at,
                        uint32_t full, uint32_t empty, int lane) {
    using E = Experts<Tiles>;
    constexpr int held = (E::tokens + 31) / 32;
    int tile = -1, present = 0, source[held] = {};  // the lane's rows of x: tokens lane, lane + 32
    uint32_t stage = 0, parity = 1;
    for (; round.more(); round.next(tables, args.row_tiles, most)) {
        if (round.tile != tile) {
            tile = round.tile;
            const int first = tables.begin[round.expert] + (tile - tables.before[round.expert]) * E::tokens;
            present = min(tables.begin[round.expert + 1] - first, E::tokens);
#pragma unroll
            for (int i = 0; i < held; ++i)
                if (const int token = lane + 32 * i; token < present)
                    source[i] = args.rows ? args.rows[first + token] : first + token;
        }
        for (int record = 0; record < args.row_records; ++record) {
            barrier_wait(empty + 8 * stage, parity);
            const int column = record * w4a16::record_cols + 8 * lane;
            const uint32_t to = x_at + stage * E::stage_bytes + 16 * lane;
            // Slots of absent tokens keep old data: their columns are never stored. (Copying zeros from one address in
            // all thread blocks: 10 us.)
#pragma unroll 4
            for (int t = 0; t < present; ++t) {
                const int row = __shfl_sync(0xFFFFFFFFu, held == 1 || t < 32 ? source[0] : source[held - 1], t % 32);
                const uint8_t* from = args.x + row * args.x_stride;
                const bool inside = column < args.k;
                copy16_or_zero(to + t * x_row_bytes, inside ? from + 2 * column : from, inside);
            }
            barrier_arrive_after_copies(full + 8 * stage);
            if (++stage == E::stages) stage = 0, parity ^= 1;
        }
    }
}

template <int Tiles>
__global__ void __launch_bounds__(Experts<Tiles>::threads, 1)
    experts_w4a16_m64_kernel(const __grid_constant__ ExpertsArgs args) {
    using E = Experts<Tiles>;
    extern __shared__ __align__(128) uint8_t shared[];
    const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    constexpr int most = E::warps;  // row tiles per round
    const uint32_t base = shared_address(shared), x_full = base + E::barriers_at, x_empty = x_full + 8 * E::stages;
    const uint32_t barriers = x_empty + 8 * (E::stages + warp * E::slots);
    const uint32_t ring = base + E::rings_at + warp * E::slots * w4a16::record_bytes;
    if (warp < E::warps && lane == 0) {
        for (int s = 0; s < E::slots; ++s) barrier_init(barriers + 8 * s, 1);
        barrier_init_done();
    }
    if (warp == E::warps && lane == 0) {
        for (int s = 0; s < E::stages; ++s) {
            barrier_init(x_full + 8 * s, 32);
            barrier_init(x_empty + 8 * s, E::warps);
        }
        barrier_init_done();
    }
    // The next kernel starts only after this wait, so data it reads early is complete.
    if (args.overlap) {
        if (!args.early) wait_for_previous();
        overlap_next();
    }

    const Tables tables = make_tables(args, reinterpret_cast<int*>(shared + E::tables_at), E::tokens);
    const int* begin = tables.begin;
    const int* before = tables.before;
    const int64_t all = int64_t{before[args.experts]} * args.row_tiles;
    const Rounds first_round(tables, static_cast<int>(all * blockIdx.x / gridDim.x),
                             static_cast<int>(all * (blockIdx.x + 1) / gridDim.x), args.row_tiles, most);
    if (warp == E::warps && args.overlap && args.early) wait_for_previous();
    if (warp == E::warps) return bring_x<Tiles>(args, tables, first_round, most, base, x_full, x_empty, lane);

    const int g = lane / 4, c = lane % 4;
    // Position of the requests, rounds and records ahead of the computation.
    Rounds ahead = first_round;
    const uint8_t* from = nullptr;
    int wanted = 0;
    uint32_t request_slot = 0;
    const auto request = [&] {
        while (wanted == 0) {
            if (!ahead.more()) return;
            if (warp < ahead.count) {
                from = args.records + ahead.expert * args.expert_bytes +
                       (int64_t{ahead.row + warp} * args.row_records) * w4a16::record_bytes;
                wanted = args.row_records;
            }
            ahead.next(tables, args.row_tiles, most);
        }
        if (lane == 0) {
            barrier_expect(barriers + 8 * request_slot, w4a16::record_bytes);
            bulk_copy(ring + request_slot * w4a16::record_bytes, from, w4a16::record_bytes,
                      barriers + 8 * request_slot);
        }
        from += w4a16::record_bytes, --wanted;
        if (++request_slot == E::slots) request_slot = 0;
    };
    for (int s = 0; s < E::slots; ++s) request();

    const ScaleBits scale_bits = args.scale_bits;
    uint32_t slot = 0, parity = 0, stage = 0, x_parity = 0;
    float acc[Tiles][4] = {};
#pragma unroll 1
    for (Rounds now = first_round; now.more(); now.next(tables, args.row_tiles, most)) {
        const int first = begin[now.expert] + (now.tile - before[now.expert]) * E::tokens;
        const int present = min(E::tokens, begin[now.expert + 1] - first);
        const bool works = warp < now.count;
        const int row_tile = now.row + min(warp, now.count - 1);
        const Output output(args, now.expert, row_tile * 16, g);
        ChunkSums<Tiles, matmul_chunks> sums_of_chunks;
        int record = 0;
#pragma unroll 1
        for (int chunk = 0; chunk < matmul_chunks; ++chunk) {
            const int end = min((chunk + 1) * args.chunk_records, args.row_records);
#pragma unroll
            for (auto& tile : acc)
#pragma unroll
                for (float& v : tile) v = 0.0f;
#pragma unroll 1
            for (; record < end; ++record) {
                barrier_wait(x_full + 8 * stage, x_parity);
                if (works) {
                    barrier_wait(barriers + 8 * slot, parity);
                    const uint8_t* at = shared + (ring - base) + slot * w4a16::record_bytes;
                    const LaneRecord held(at, lane);
                    loads_done();
                    __syncwarp();
                    request();
                    if (++slot == E::slots) slot = 0, parity ^= 1;
                    const uint8_t* x = shared + stage * E::stage_bytes + 32 * c;
                    multiply_record<Tiles>(acc, held.codes, held.scales, scale_bits, x,
                                           [&](int t) { return min(8 * t + g, present - 1); });
                }
                __syncwarp();
                barrier_arrive_if(x_empty + 8 * stage, lane == 0);
                if (++stage == E::stages) stage = 0, x_parity ^= 1;
            }
            if (works) sums_of_chunks.fold(acc, chunk);
        }
        if (!works) continue;
#pragma unroll
        for (int t = 0; t < Tiles; ++t)
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (const int token = 8 * t + 2 * c + e; token < present)
                    output.store(first + token, acc[t][e], acc[t][2 + e]);
    }
}

template <int Tiles>
cudaError_t launch(const ExpertsArgs& args, int blocks, cudaStream_t stream) {
    using E = Experts<Tiles>;
    return launch_kernel(experts_w4a16_m64_kernel<Tiles>, dim3(static_cast<unsigned>(blocks)), E::threads,
                         E::bytes(args.experts), args, stream);
}
template <int Tiles>
cudaError_t prepare() {
    return cudaFuncSetAttribute(experts_w4a16_m64_kernel<Tiles>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                Experts<Tiles>::bytes(1024));
}

}  // namespace

cudaError_t launch_experts_w4a16_m64(const ExpertsArgs& args, const ExpertsLaunchShape& shape, cudaStream_t stream) {
    if (shape.kernel == ExpertsKernel::many) return launch_sm90_experts_w4a16(args, shape.tokens, shape.blocks, stream);
    if (shape.kernel == ExpertsKernel::few) return launch_experts_w4a16_m8(args, shape.parts, shape.blocks, stream);
    switch (shape.tokens) {
        case 8:
            return launch<1>(args, shape.blocks, stream);
        case 16:
            return launch<2>(args, shape.blocks, stream);
        case 64:
            return launch<8>(args, shape.blocks, stream);
        default:
            return cudaErrorInvalidValue;
    }
}

cudaError_t prepare_experts_w4a16_m64() {
    for (const auto each : {prepare<1>, prepare<2>, prepare<8>, prepare_experts_w4a16_m8, prepare_sm90_experts_w4a16,
                            prepare_experts_w4a16_m1, prepare_experts_w4a16_m1_units})
        if (const cudaError_t code = each()) return code;
    return cudaSuccess;
}

}  // namespace nibble::cuda
