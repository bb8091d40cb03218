// W4A16 for the experts of a mixture, all that are hit in one launch, from one token to a prefill.
//
// A thread block per multiprocessor has an even share of all (tile of tokens, 16 rows) that there are and goes through
// it in rounds of as many row tiles of one tile of tokens as it has warps. A warp takes a row tile and all of K, or,
// where a round would leave most warps idle, four warps take two chunks of it each. Every warp fills its own ring of
// weight records, rounds ahead of what it computes; one more warp gathers the rows of x, in stages of 256 columns, for
// all of them. So nothing drains between rounds or experts.
//
// Sums: as in matmul(), one accumulator per chunk from zero, then neighbours first; sums that wait are in registers.
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/w4a16_decode.cuh"

namespace nibble::cuda {
namespace {

// Neighbouring tokens begin 16 bytes apart in the banks: a lane's 32 bytes of four k-steps come without conflicts.
constexpr int x_row_bytes = w4a16::record_cols * 2 + 16;

template <int Tiles, int Parts>  // tiles of eight tokens; warps that share a row tile
struct Experts {
    static constexpr int tokens = 8 * Tiles, chunks = matmul_chunks / Parts;
    // One less than what is a multiple of four, for the warp that brings x: registers are given out by quarters.
    static constexpr int warps = Parts > 1 ? 24 : Tiles == 1 ? 27 : Tiles < 8 ? 15 : 7;
    static constexpr int threads = 32 * (warps + 1);
    static constexpr int stage_bytes = tokens * x_row_bytes;
    static constexpr int stages = Parts > 1 ? 12 : Tiles == 1 ? 8 : Tiles == 2 ? 6 : 4;
    static constexpr int slots = Parts > 1 ? 2 : Tiles == 1 ? 3 : 4;
    static constexpr int rings_at = stages * stage_bytes;
    static constexpr int sums_at = rings_at + warps * slots * w4a16::record_bytes;
    static constexpr int sums_bytes = Parts > 1 ? 2 * warps * 512 : 0;  // two buffers of [warp][16 rows][8 tokens]
    static constexpr int barriers_at = sums_at + sums_bytes;
    static constexpr int tables_at = barriers_at + 8 * (2 * stages + warps * slots);
    static constexpr int bytes(int experts) { return tables_at + 8 * (experts + 1); }
    static_assert(bytes(1024) <= 227 * 1024 && bytes(1) > 114 * 1024);
};

__device__ void multiply_add(float (&acc)[4], const uint32_t* a, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// 16 bytes, or zeros.
__device__ void copy16(uint32_t to, const void* from, bool present) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(present ? 16 : 0)
                 : "memory");
}
__device__ void barrier_arrive_after_copies(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// begin[e] of every expert, and how many tiles of tokens the experts before it have; in shared memory.
struct Tables {
    const int* begin;
    const int* before;
    int experts;

    __device__ int expert_of(int tile) const {
        int low = 0, high = experts - 1;  // the last expert with before[e] <= tile has tiles
        while (low < high) {
            const int middle = (low + high + 1) / 2;
            if (before[middle] <= tile)
                low = middle;
            else
                high = middle - 1;
        }
        return low;
    }
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

// Scales of the rows g and g + 8 of a row tile, and where its outputs go.
struct Output {
    const ExpertsArgs& args;
    int row;     // g's
    int64_t at;  // its place among all experts'
    float scale[2] = {};

    __device__ Output(const ExpertsArgs& a, int expert, int first_row, int g)
        : args(a), row(first_row + g), at(int64_t{expert} * a.n + row) {
#pragma unroll
        for (int h = 0; h < 2; ++h)
            if (row + 8 * h < a.n) scale[h] = __ldg(a.row_scales + at + 8 * h);
    }
    __device__ float value(float sum, int h) const {
        const float y = fmaf(sum * scale[h], w4a16::unscale, 0.0f);
        return args.bias && row + 8 * h < args.n ? y + __ldg(args.bias + at + 8 * h) : y;
    }
    __device__ void store(int slot, float upper, float lower) const {
        const float y[2] = {value(upper, 0), value(lower, 1)};
        if (args.out && args.gated) {
            const int to = row / 16 * 8 + row % 8;
            if (row < args.n)
                args.out[slot * args.y_stride + to] =
                    bf16_from_float(act(args.activation, rounded(y[0])) * rounded(y[1]));
            return;
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (row + 8 * h >= args.n) continue;
            const int64_t to = slot * args.y_stride + row + 8 * h;
            if (args.out)
                args.out[to] = bf16_from_float(act(args.activation, rounded(y[h])));
            else
                args.y[to] = y[h];
        }
    }
};

template <int Tiles, int Parts>
__device__ void bring_x(const ExpertsArgs& args, const Tables& tables, Rounds round, int most, uint32_t x_at,
                        uint32_t full, uint32_t empty, int lane) {
    using E = Experts<Tiles, Parts>;
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
                    source[i] = args.rows ? __ldg(args.rows + first + token) : first + token;
        }
        for (int record = 0; record < args.row_records; ++record) {
            barrier_wait(empty + 8 * stage, parity);
            const int column = record * w4a16::record_cols + 8 * lane;
            const uint32_t to = x_at + stage * E::stage_bytes + 16 * lane;
            // Absent tokens stay what they were: their columns are never stored. (Zeros by copies of no bytes from one
            // address of all thread blocks: 10 us.)
#pragma unroll 4
            for (int t = 0; t < present; ++t) {
                const int row = __shfl_sync(0xFFFFFFFFu, held == 1 || t < 32 ? source[0] : source[held - 1], t % 32);
                const uint8_t* from = args.x + row * args.x_stride;
                const bool inside = column < args.k;
                copy16(to + t * x_row_bytes, inside ? from + 2 * column : from, inside);
            }
            barrier_arrive_after_copies(full + 8 * stage);
            if (++stage == E::stages) stage = 0, parity ^= 1;
        }
    }
}

template <int Tiles, int Parts>
__global__ void __launch_bounds__(Experts<Tiles, Parts>::threads, 1)
    experts_kernel(const __grid_constant__ ExpertsArgs args) {
    using E = Experts<Tiles, Parts>;
    extern __shared__ __align__(128) uint8_t shared[];
    const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    constexpr int most = E::warps / Parts;  // row tiles of a round
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
    // The next kernel starts only after this wait: what it may then read early is complete.
    if (args.overlap) {
        if (!args.early) wait_for_previous();
        overlap_next();
    }

    int* begin = reinterpret_cast<int*>(shared + E::tables_at);
    int* before = begin + args.experts + 1;
    for (int e = static_cast<int>(threadIdx.x); e <= args.experts; e += E::threads) {
        const int first = args.begin[e], next = e < args.experts ? args.begin[e + 1] : first;
        begin[e] = first;
        before[e] = (next - first + E::tokens - 1) / E::tokens;  // its own, for now
    }
    __syncthreads();
    if (warp == 0) {
        int sum = 0;
        for (int base_expert = 0; base_expert <= args.experts; base_expert += 32) {
            const int e = base_expert + lane, own = e <= args.experts ? before[e] : 0;
            int through = own;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const int other = __shfl_up_sync(0xFFFFFFFFu, through, step);
                if (lane >= step) through += other;
            }
            if (e <= args.experts) before[e] = sum + through - own;
            sum += __shfl_sync(0xFFFFFFFFu, through, 31);
        }
    }
    __syncthreads();
    const Tables tables{begin, before, args.experts};
    const int64_t all = int64_t{before[args.experts]} * args.row_tiles;
    const Rounds first_round(tables, static_cast<int>(all * blockIdx.x / gridDim.x),
                             static_cast<int>(all * (blockIdx.x + 1) / gridDim.x), args.row_tiles, most);
    if (warp == E::warps && args.overlap && args.early) wait_for_previous();
    if (warp == E::warps) return bring_x<Tiles, Parts>(args, tables, first_round, most, base, x_full, x_empty, lane);

    const int mine = warp / Parts, part = warp % Parts, g = lane / 4, c = lane % 4;
    const int item_first = min(part * E::chunks * args.chunk_records, args.row_records);
    const int item_records = min((part + 1) * E::chunks * args.chunk_records, args.row_records) - item_first;
    // What is asked for: rounds and records ahead of what is computed.
    Rounds ahead = first_round;
    const uint8_t* from = nullptr;
    int wanted = 0;
    uint32_t request_slot = 0;
    const auto request = [&] {
        while (wanted == 0) {
            if (!ahead.more()) return;
            if (mine < ahead.count) {
                from = args.records + ahead.expert * args.expert_bytes +
                       (int64_t{ahead.row + mine} * args.row_records + item_first) * w4a16::record_bytes;
                wanted = item_records;
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
    int buffer = 0;
    float acc[Tiles][4] = {};
#pragma unroll 1
    for (Rounds now = first_round; now.more(); now.next(tables, args.row_tiles, most)) {
        const int first = begin[now.expert] + (now.tile - before[now.expert]) * E::tokens;
        const int present = min(E::tokens, begin[now.expert + 1] - first);
        const bool works = mine < now.count;
        const int row_tile = now.row + min(mine, now.count - 1);
        // Of the lane's outputs: rows g and g + 8 of the accumulators, or where parts are added of their sums.
        const int output_g = Parts == 1 ? g : lane % 8;
        const Output output(args, now.expert, row_tile * 16, output_g);
        float parked[3][Tiles][4];
        int record = 0;
#pragma unroll 1
        for (int chunk = 0; chunk < matmul_chunks; ++chunk) {
            const int end = min((chunk + 1) * args.chunk_records, args.row_records);
            const bool own = works && (Parts == 1 || chunk / E::chunks == part);
            if (own)
#pragma unroll
                for (auto& tile : acc)
#pragma unroll
                    for (float& v : tile) v = 0.0f;
#pragma unroll 1
            for (; record < end; ++record) {
                // Several warps to a row tile: the record is in registers, the next one asked for, before x is there.
                constexpr bool record_first = Parts > 1;
                if (!record_first || !own) barrier_wait(x_full + 8 * stage, x_parity);
                if (own) {
                    barrier_wait(barriers + 8 * slot, parity);
                    const uint8_t* at = shared + (ring - base) + slot * w4a16::record_bytes;
                    uint4 codes[w4a16::record_blocks];
#pragma unroll
                    for (int b = 0; b < w4a16::record_blocks; ++b)
                        codes[b] = *reinterpret_cast<const uint4*>(at + 512 * b + 16 * lane);
                    const uint2 scales = *reinterpret_cast<const uint2*>(at + w4a16::record_code_bytes + 8 * lane);
                    __syncwarp();
                    request();
                    if (++slot == E::slots) slot = 0, parity ^= 1;
                    if (record_first) barrier_wait(x_full + 8 * stage, x_parity);
                    const uint8_t* x = shared + stage * E::stage_bytes + g * x_row_bytes + 32 * c;
#pragma unroll
                    for (int b = 0; b < w4a16::record_blocks; ++b) {
                        const ScalePairs pairs(scales, b, scale_bits);
                        uint32_t a[4][4];
#pragma unroll
                        for (int j = 0; j < 4; ++j) decode_step(a[j], codes[b], pairs, j);
#pragma unroll
                        for (int t = 0; t < Tiles; ++t) {
                            const uint4* columns = reinterpret_cast<const uint4*>(x + t * 8 * x_row_bytes + 128 * b);
                            const uint4 low = columns[0], high = columns[1];
                            multiply_add(acc[t], a[0], low.x, low.y);
                            multiply_add(acc[t], a[1], low.z, low.w);
                            multiply_add(acc[t], a[2], high.x, high.y);
                            multiply_add(acc[t], a[3], high.z, high.w);
                        }
                    }
                }
                __syncwarp();
                barrier_arrive_if(x_empty + 8 * stage, lane == 0);
                if (++stage == E::stages) stage = 0, x_parity ^= 1;
            }
            if (!own) continue;
            const auto add = [&](const float(&left)[Tiles][4]) {
#pragma unroll
                for (int t = 0; t < Tiles; ++t)
#pragma unroll
                    for (int e = 0; e < 4; ++e) acc[t][e] = left[t][e] + acc[t][e];
            };
            const auto keep = [&](float(&to)[Tiles][4]) {
#pragma unroll
                for (int t = 0; t < Tiles; ++t)
#pragma unroll
                    for (int e = 0; e < 4; ++e) to[t][e] = acc[t][e];
            };
            // The last chunk of the warp's own leaves the sum of all in acc.
            const int local = chunk % E::chunks;
            if (!(local & 1)) {
                keep(parked[0]);
            } else {
                add(parked[0]);
                if constexpr (E::chunks > 2) {
                    if (!(local & 2)) {
                        keep(parked[1]);
                    } else {
                        add(parked[1]);
                        if (!(local & 4))
                            keep(parked[2]);
                        else
                            add(parked[2]);
                    }
                }
            }
        }
        if (!works) continue;
        if constexpr (Parts == 1) {
#pragma unroll
            for (int t = 0; t < Tiles; ++t)
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    if (const int token = 8 * t + 2 * c + e; token < present)
                        output.store(first + token, acc[t][e], acc[t][2 + e]);
        } else {
            static_assert(Tiles == 1);
            float* sums = reinterpret_cast<float*>(shared + E::sums_at) + (buffer * E::warps + mine * Parts) * 128;
            float2* own = reinterpret_cast<float2*>(sums + part * 128 + g * 8 + 2 * c);
            own[0] = {acc[0][0], acc[0][1]};
            own[32] = {acc[0][2], acc[0][3]};
            // With two buffers one barrier a round: this one is written again only after the next.
            asm volatile("bar.sync %0, %1;" ::"r"(1 + mine), "n"(32 * Parts) : "memory");
            buffer ^= 1;
            const int token = part * 4 + lane / 8;
            if (part < 2 && token < present) {
                float upper[Parts], lower[Parts];
#pragma unroll
                for (int p = 0; p < Parts; ++p) {
                    upper[p] = sums[p * 128 + output_g * 8 + token];
                    lower[p] = sums[p * 128 + (output_g + 8) * 8 + token];
                }
                output.store(first + token, tree_sum(upper), tree_sum(lower));
            }
        }
    }
}

template <int Tiles, int Parts>
cudaError_t launch(const ExpertsArgs& args, int blocks, cudaStream_t stream) {
    using E = Experts<Tiles, Parts>;
    return launch_kernel(experts_kernel<Tiles, Parts>, dim3(static_cast<unsigned>(blocks)), E::threads,
                         E::bytes(args.experts), args, stream);
}
template <int Tiles, int Parts>
cudaError_t prepare() {
    return cudaFuncSetAttribute(experts_kernel<Tiles, Parts>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                Experts<Tiles, Parts>::bytes(1024));
}

}  // namespace

cudaError_t launch_experts(const ExpertsArgs& args, const ExpertsShape& shape, cudaStream_t stream) {
    switch (shape.tokens * 10 + shape.parts) {
        case 81:
            return launch<1, 1>(args, shape.blocks, stream);
        case 84:
            return launch<1, 4>(args, shape.blocks, stream);
        case 161:
            return launch<2, 1>(args, shape.blocks, stream);
        case 321:
            return launch<4, 1>(args, shape.blocks, stream);
        case 641:
            return launch<8, 1>(args, shape.blocks, stream);
        default:
            return cudaErrorInvalidValue;
    }
}

cudaError_t prepare_experts() {
    for (const auto each : {prepare<1, 1>, prepare<1, 4>, prepare<2, 1>, prepare<4, 1>, prepare<8, 1>})
        if (const cudaError_t code = each()) return code;
    return cudaSuccess;
}

}  // namespace nibble::cuda
