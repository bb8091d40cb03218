// Attention of many columns (query token, head) of a KV head at a time, on wgmma, in the order of attention_kernel.cuh:
// 64 columns a warpgroup, runs of 64 positions one after the other, as attention_gather.cu lays them out.
//
// Sums: o of a run, those of a group in registers, and the total, which waits in shared memory between groups.
#include "kernels/cuda/attention_order.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/wgmma_shared.cuh"

namespace nibble::cuda {
namespace {

constexpr int workers = 2, prefill_threads = 128 * (workers + 1), stages = 3;

template <int Dims>
struct PrefillLayout {
    static constexpr int half_bytes = 64 * Dims * 2, stage_bytes = 2 * half_bytes;
    static constexpr int q_at = stages * stage_bytes, q_bytes = 64 * Dims * 2;  // of a warpgroup
    static constexpr int totals_at = q_at + workers * q_bytes, total_bytes = 64 * Dims * 4;
    static constexpr int barriers_at = totals_at + workers * total_bytes;
    static constexpr int bytes = barriers_at + 16 * stages + 1024;  // operands begin at a multiple of 1024
    static_assert(bytes <= 227 * 1024);
};

__device__ AttentionPrefill read_prefill(const AttentionArgs& args, const AttentionCounts& counts, int unit) {
    const int32_t* at = args.work + counts.prefills_at + unit * prefill_words;
    return {at[0], at[1], at[2], at[3], at[4], at[5], at[6]};
}

// One warpgroup's columns over all their runs.
template <int Dims>
class Worker {
    using L = PrefillLayout<Dims>;
    static constexpr int registers = Dims / 2;

public:
    __device__ Worker(const AttentionArgs& a, const AttentionPrefill& u, int head, int group, uint8_t* memory)
        : args(a),
          unit(u),
          kv_head(head),
          per_head(a.q_heads / a.kv_heads),
          worker(group),
          memory(memory),
          thread(static_cast<int>(threadIdx.x) % 128),
          lane(thread % 32),
          first_column(u.column + 64 * group),
          columns(min(64, u.columns - 64 * group)) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = thread / 32 * 16 + lane / 4 + 8 * h;
            position[h] = unit.position + (first_column + min(row, max(columns, 1) - 1)) / per_head;
        }
        lowest = unit.position + first_column / per_head;
        highest = unit.position + (first_column + max(columns, 1) - 1) / per_head;
    }

    __device__ void load_q() const {
        uint8_t* to = memory + L::q_at + worker * L::q_bytes;
        constexpr int chunks = Dims / 8;
        for (int i = thread; i < 64 * chunks; i += 128) {
            const int row = i / chunks, block = i % chunks / 8, chunk = i % 8, step = 4 * block + chunk / 2;
            uint4 v{0, 0, 0, 0};
            if (row < columns) {
                const int column = first_column + row;
                const int64_t head =
                    (int64_t{unit.row} + column / per_head) * args.q_heads + kv_head * per_head + column % per_head;
                const uint8_t* from = args.q + head * (2 * Dims) + step / 2 * 64 + step % 2 * 8 + chunk % 2 * 4;
                v = {*reinterpret_cast<const uint32_t*>(from), *reinterpret_cast<const uint32_t*>(from + 16),
                     *reinterpret_cast<const uint32_t*>(from + 32), *reinterpret_cast<const uint32_t*>(from + 48)};
            }
            *reinterpret_cast<uint4*>(to + block * 8192 + row * 128 + (chunk ^ row % 8) * 16) = v;
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        sync();
    }

    // The run of 64 positions whose operands lie at `stage`.
    __device__ void run(uint32_t base, uint32_t stage, int run_position, float scale_log2, bool first_of_group) {
        float s[32];
        const uint32_t q = swizzled_operand(base + L::q_at + worker * L::q_bytes), k = swizzled_operand(stage);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < Dims / 16; ++step)
            WgmmaShared<64>::run(s, q + step / 4 * 512 + step % 4 * 2, k + step / 4 * 512 + step % 4 * 2, step > 0);
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (float& v : s) v *= scale_log2;
        const bool all_see =
            run_position + run_tokens - 1 <= lowest && (!args.window || run_position > highest - args.window);
        if (!all_see) {
#pragma unroll
            for (int r = 0; r < 32; ++r) {
                // Register r: column 8 (r / 4) + 2 c + r % 2 of the run, which is a row of a tile.
                const int column = r / 4 * 8 + lane % 4 * 2 + r % 2;
                const int behind = position[r / 2 % 2] - (run_position + column / 16 * 16 + k_token(column % 16));
                if (behind < 0 || (args.window && behind >= args.window)) s[r] = -INFINITY;
            }
        }
        float top[2], sum[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float most = -INFINITY;
#pragma unroll
            for (int r = 0; r < 32; r += 4) most = fmaxf(most, fmaxf(s[r + 2 * h], s[r + 2 * h + 1]));
            most = fmaxf(most, __shfl_xor_sync(all_lanes, most, 1));
            most = fmaxf(most, __shfl_xor_sync(all_lanes, most, 2));
            top[h] = most;
            const float base_of = most == -INFINITY ? 0.0f : most;
#pragma unroll
            for (int r = 0; r < 32; r += 4) {
                s[r + 2 * h] = exp2_of(s[r + 2 * h] - base_of);
                s[r + 2 * h + 1] = exp2_of(s[r + 2 * h + 1] - base_of);
            }
            float even = 0.0f, odd = 0.0f;  // rows 2 c and 2 c + 1 of the tiles, and those eight below
#pragma unroll
            for (int r = 0; r < 32; r += 8) {
                even += s[r + 2 * h] + s[r + 4 + 2 * h];
                odd += s[r + 2 * h + 1] + s[r + 4 + 2 * h + 1];
            }
            float all = even + odd;
            all += __shfl_xor_sync(all_lanes, all, 1);
            all += __shfl_xor_sync(all_lanes, all, 2);
            sum[h] = all;
        }
        uint32_t p[16];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            p[4 * i] = Bf16Kv::pack(s[8 * i], s[8 * i + 1]);
            p[4 * i + 1] = Bf16Kv::pack(s[8 * i + 2], s[8 * i + 3]);
            p[4 * i + 2] = Bf16Kv::pack(s[8 * i + 4], s[8 * i + 5]);
            p[4 * i + 3] = Bf16Kv::pack(s[8 * i + 6], s[8 * i + 7]);
        }
        float o[registers];
        const uint32_t v = swizzled_operand(stage + L::half_bytes);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i) Wgmma<Dims>::run(o, p + 4 * i, v + 2 * i, i > 0);
        wgmma_commit();
        wgmma_wait<0>();
        if (first_of_group) {
#pragma unroll
            for (int h = 0; h < 2; ++h) group_top[h] = -INFINITY, group_sum[h] = 0.0f;
#pragma unroll
            for (float& x : group) x = 0.0f;
        }
        merge(group, group_top, group_sum, o, top, sum);
    }

    // The group's sums into the total.
    __device__ void end_group(bool first, bool last) {
        float4* total = reinterpret_cast<float4*>(memory + L::totals_at + worker * L::total_bytes) + thread;
        if (first) {
#pragma unroll
            for (int h = 0; h < 2; ++h) total_top[h] = group_top[h], total_sum[h] = group_sum[h];
        } else {
            float own[2], other[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const Weights w(total_top[h], group_top[h]);
                own[h] = w.own, other[h] = w.other;
                total_sum[h] = fmaf(other[h], group_sum[h], own[h] * total_sum[h]);
            }
#pragma unroll
            for (int r = 0; r < registers; r += 4) {
                const float4 before = total[r / 4 * 128];
                group[r] = fmaf(other[0], group[r], own[0] * before.x);
                group[r + 1] = fmaf(other[0], group[r + 1], own[0] * before.y);
                group[r + 2] = fmaf(other[1], group[r + 2], own[1] * before.z);
                group[r + 3] = fmaf(other[1], group[r + 3], own[1] * before.w);
            }
        }
        if (last) return;
#pragma unroll
        for (int r = 0; r < registers; r += 4)
            total[r / 4 * 128] = {group[r], group[r + 1], group[r + 2], group[r + 3]};
    }

    __device__ void store() const {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = thread / 32 * 16 + lane / 4 + 8 * h, column = first_column + row;
            if (row >= columns) continue;
            const int64_t head =
                (int64_t{unit.row} + column / per_head) * args.q_heads + kv_head * per_head + column % per_head;
            uint32_t* out = reinterpret_cast<uint32_t*>(args.out + head * (2 * Dims)) + lane % 4;
#pragma unroll
            for (int r = 0; r < registers; r += 4) {
                const Share low{total_top[h], total_sum[h], group[r + 2 * h]};
                const Share high{total_top[h], total_sum[h], group[r + 2 * h + 1]};
                out[r] = Bf16Kv::pack(low.output(1.0f), high.output(1.0f));
            }
        }
    }

private:
    __device__ void sync() const { asm volatile("bar.sync %0, 128;" ::"r"(worker + 1) : "memory"); }
    static __device__ void merge(float (&to)[registers], float (&to_top)[2], float (&to_sum)[2],
                                 const float (&from)[registers], const float (&from_top)[2],
                                 const float (&from_sum)[2]) {
        float own[2], other[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const Weights w(to_top[h], from_top[h]);
            own[h] = w.own, other[h] = w.other;
            to_sum[h] = fmaf(other[h], from_sum[h], own[h] * to_sum[h]);
        }
#pragma unroll
        for (int r = 0; r < registers; ++r) to[r] = fmaf(other[r / 2 % 2], from[r], own[r / 2 % 2] * to[r]);
    }

    const AttentionArgs& args;
    const AttentionPrefill& unit;
    const int kv_head, per_head, worker;
    uint8_t* memory;
    const int thread, lane, first_column, columns;
    int position[2], lowest, highest;
    float group[registers], group_top[2], group_sum[2], total_top[2], total_sum[2];
};

template <int Dims>
__global__ void __launch_bounds__(prefill_threads, 1) prefill_kernel(const __grid_constant__ AttentionArgs args) {
    using L = PrefillLayout<Dims>;
    extern __shared__ __align__(128) uint8_t shared_bytes[];
    const uint32_t unaligned = shared_address(shared_bytes), base = (unaligned + 1023u) & ~1023u;
    uint8_t* memory = shared_bytes + (base - unaligned);
    const uint32_t full = base + L::barriers_at, empty = full + 8 * stages;
    const int group = __shfl_sync(all_lanes, static_cast<int>(threadIdx.x) / 128, 0);
    if (threadIdx.x == 0) {
        for (int s = 0; s < stages; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, workers);
        }
        barrier_init_done();
    }
    __syncthreads();
    start(args.overlap);
    const AttentionCounts counts = *reinterpret_cast<const AttentionCounts*>(args.work);
    const int total = counts.prefills * args.kv_heads, stride = static_cast<int>(gridDim.x);
    uint32_t slot = 0, parity = 0;
    const auto next_slot = [&] {
        if (++slot == stages) slot = 0, parity ^= 1;
    };
    if (group == workers) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        if (threadIdx.x % 128 != 0) return;
        for (int item = static_cast<int>(blockIdx.x); item < total; item += stride) {
            const AttentionPrefill unit = read_prefill(args, counts, item / args.kv_heads);
            const int head = item % args.kv_heads;
            for (int run = 0; run < unit.runs; ++run) {
                barrier_wait(empty + 8 * slot, parity ^ 1);
                barrier_expect(full + 8 * slot, L::stage_bytes);
                bulk_copy(base + slot * L::stage_bytes,
                          args.scratch + (int64_t{unit.scratch + run} * args.kv_heads + head) * L::stage_bytes,
                          L::stage_bytes, full + 8 * slot);
                next_slot();
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
#pragma unroll 1
    for (int item = static_cast<int>(blockIdx.x); item < total; item += stride) {
        const AttentionPrefill unit = read_prefill(args, counts, item / args.kv_heads);
        Worker<Dims> worker(args, unit, item % args.kv_heads, group, memory);
        worker.load_q();
        bool first_group = true;
#pragma unroll 1
        for (int run = unit.first_run; run < unit.first_run + unit.runs; ++run) {
            barrier_wait(full + 8 * slot, parity);
            worker.run(base, base + slot * L::stage_bytes, run * run_tokens, args.scale_log2,
                       run == unit.first_run || run % group_runs == 0);
            barrier_arrive_if(empty + 8 * slot, threadIdx.x % 128 == 0);
            next_slot();
            const bool last = run + 1 == unit.first_run + unit.runs;
            if (last || run % group_runs == group_runs - 1) {
                worker.end_group(first_group, last);
                first_group = false;
            }
        }
        worker.store();
    }
}

template <class Visit>
cudaError_t visit(int dims, Visit visit) {
    if (dims == 64) return visit(prefill_kernel<64>, PrefillLayout<64>::bytes);
    if (dims == 128) return visit(prefill_kernel<128>, PrefillLayout<128>::bytes);
    return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t prepare_prefill(int dims) {
    return visit(dims, [](auto kernel, int bytes) {
        return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    });
}

cudaError_t launch_prefill(const AttentionArgs& args, int dims, int blocks, cudaStream_t stream) {
    return visit(dims, [&](auto kernel, int bytes) {
        return launch_kernel(kernel, dim3(static_cast<unsigned>(blocks)), prefill_threads, bytes, args, stream);
    });
}

}  // namespace nibble::cuda
