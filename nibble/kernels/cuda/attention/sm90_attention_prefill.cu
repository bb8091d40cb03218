// Attention of many columns (query token, head) of a KV head at a time with wgmma, in the order of
// attention_kernel.cuh: 64 columns per warpgroup, runs of positions one after the other in the layout of
// attention_gather.cu. Scores and softmax of the next run are computed while the values of the current run are added.
//
// Operands are BF16, or FP16 for an FP8 cache. A group's sums are in registers; the total is in shared memory between
// groups.
#include "kernels/cuda/attention/attention_order.cuh"
#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/cuda/primitives/wgmma_shared.cuh"

#include <numbers>
#include <type_traits>

namespace nibble::cuda {
namespace {

constexpr int workers = 2, prefill_threads = 128 * (workers + 1);

// One warpgroup queues its products while the other computes its softmax. (Without this: 5 % slower at 4096 tokens, 1 %
// at 16384; heads of 64, whose products are shorter, are 2 % slower with it.)
template <int Dims>
constexpr bool ping_pong = Dims == 128;

template <int Dims>
struct PrefillLayout {
    static constexpr int half_bytes = run_tokens * Dims * 2, run_bytes = 2 * half_bytes;
    static constexpr int stages = Dims == 64 ? 4 : 2;                              // stages of keys, and of values
    static constexpr int values_at = stages * half_bytes;                          // after keys
    static constexpr int q_at = 2 * stages * half_bytes, q_bytes = 64 * Dims * 2;  // per warpgroup
    static constexpr int totals_at = q_at + workers * q_bytes, total_bytes = 64 * Dims * 4;
    static constexpr int barriers_at = totals_at + workers * total_bytes;
    static constexpr int bytes = barriers_at + 32 * stages + 1024;  // operands begin at a multiple of 1024
    static_assert(bytes <= 227 * 1024);
};

// Reads an item without the columns after the last.
__device__ AttentionPrefill read_prefill(const AttentionArgs& args, const AttentionCounts& counts, int item,
                                         int items) {
    if (item >= items) return {};
    const int32_t* at = args.work + counts.prefills_at + item / args.kv_heads * prefill_words;
    return {at[0], at[1], at[2], at[3], at[4], at[5], at[6]};
}

// The items of a thread block. Every other round runs in reverse order, because the longest items come first.
struct Items {
    int total, round = 0;
    // Returns `total` or more after the last item.
    __device__ int next() {
        const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
        const int item = round * blocks + (round % 2 ? blocks - 1 - block : block);
        ++round;
        return item;
    }
};

// A position in a ring buffer that is being read or filled.
template <int Stages>
struct Place {
    uint32_t slot = 0, parity = 0;
    __device__ void next() {
        if (++slot == Stages) slot = 0, parity ^= 1;
    }
};

// A warpgroup's columns of q. A thread has 32 dimensions, used by two k-steps, of several columns. They are loaded
// early and stored after the previous columns are done.
template <class Kv, int Dims>
struct Queries {
    static constexpr int each = Dims / 64;  // per thread: 64 columns of Dims / 32 pieces
    uint4 v[each][4];

    __device__ void load(const AttentionArgs& args, const AttentionPrefill& unit, int kv_head, int group) {
        const int per_head = args.q_heads / args.kv_heads, thread = static_cast<int>(threadIdx.x) % 128;
        const int first_column = unit.column + 64 * group, columns = unit.columns - 64 * group;
#pragma unroll
        for (int i = 0; i < each; ++i) {
            const int row = (thread + 128 * i) / (Dims / 32), piece = thread % (Dims / 32);
            const int column = first_column + row;
            const int64_t head =
                (int64_t{unit.row} + column / per_head) * args.q_heads + kv_head * per_head + column % per_head;
            const uint8_t* from = args.q + head * (2 * Dims);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const auto* words = reinterpret_cast<const uint4*>(from + 2 * Kv::q_dim(piece, c));
                v[i][c] = row < columns ? *words : uint4{0, 0, 0, 0};
            }
        }
    }
    // Stores the chunks of words that a lane of the other kernel has for its column: one of each 16 bytes.
    __device__ void store(uint8_t* to) const {
        const int thread = static_cast<int>(threadIdx.x) % 128;
#pragma unroll
        for (int i = 0; i < each; ++i) {
            const int row = (thread + 128 * i) / (Dims / 32), piece = thread % (Dims / 32);
            uint8_t* line = to + piece / 2 * 8192 + row * 128;
            const auto chunk = [&](int w, uint4 words) {
                *reinterpret_cast<uint4*>(line + ((piece % 2 * 4 + w) ^ row % 8) * 16) = words;
            };
            const auto of = [](uint32_t pair) { return Kv::operand_of(pair); };
            chunk(0, make_uint4(of(v[i][0].x), of(v[i][1].x), of(v[i][2].x), of(v[i][3].x)));
            chunk(1, make_uint4(of(v[i][0].y), of(v[i][1].y), of(v[i][2].y), of(v[i][3].y)));
            chunk(2, make_uint4(of(v[i][0].z), of(v[i][1].z), of(v[i][2].z), of(v[i][3].z)));
            chunk(3, make_uint4(of(v[i][0].w), of(v[i][1].w), of(v[i][2].w), of(v[i][3].w)));
        }
    }
};

// Processes one warpgroup's columns over all their runs.
template <class Kv, int Dims>
class Worker {
    using L = PrefillLayout<Dims>;
    static constexpr int registers = Dims / 2, score_registers = run_tokens / 2, operands = run_tokens / 4;

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

    // Queues the product without waiting.
    __device__ void scores(float (&s)[score_registers], uint32_t base, uint32_t slot) const {
        const uint32_t q = swizzled_operand(base + L::q_at + worker * L::q_bytes);
        const uint32_t k = swizzled_operand(base + slot * L::half_bytes);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < Dims / 16; ++step)
            WgmmaShared<run_tokens, Kv::half>::run(s, q + step / 4 * 512 + step % 4 * 2,
                                                   k + step / 4 * (8 * run_tokens) + step % 4 * 2, step > 0);
        wgmma_commit();
    }
    __device__ void values(float (&o)[registers], const uint32_t (&p)[operands], uint32_t base, uint32_t slot,
                           bool first_of_group) const {
        const uint32_t v = swizzled_operand(base + L::values_at + slot * L::half_bytes);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < operands / 4; ++i)
            Wgmma<Dims, Kv::half>::run(o, p + 4 * i, v + i / 4 * (8 * Dims) + i % 4 * 2, i > 0 || !first_of_group);
        wgmma_commit();
    }

    // Converts scores of a run to exponentials, and computes the factor of the group's earlier sums.
    __device__ void softmax(float (&s)[score_registers], float (&factor)[2], int run_position,
                            const ScoreScales& scales, bool first_of_group) {
        if (scales.cap > 0) {
#pragma unroll
            for (float& v : s) v = tanh_of(v * scales.cap);
        }
        const float scale = scales.log2;
        const bool all_see =
            run_position + run_tokens - 1 <= lowest && run_position > highest - keys_seen(args, highest);
        if (!all_see) {
            // Register r: row 8 (r / 4 % 2) + 2 c + r % 2 of tile r / 8; the position relative to the lane's first one.
            int seen[2], keys[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                seen[h] = position[h] - run_position - k_token(lane % 4 * 2);
                keys[h] = keys_seen(args, position[h]);
            }
#pragma unroll
            for (int r = 0; r < score_registers; ++r) {
                const int distance = seen[r / 2 % 2] - (r / 8 * 16 + k_token(r / 4 % 2 * 8 + r % 2));
                if (distance < 0 || distance >= keys[r / 2 % 2]) s[r] = -INFINITY;
            }
        }
        if (first_of_group) {
#pragma unroll
            for (int h = 0; h < 2; ++h) top[h] = -INFINITY, even[h] = 0.0f, odd[h] = 0.0f;
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float most = fmaxf(s[2 * h], s[2 * h + 1]), more = fmaxf(s[2 * h + 4], s[2 * h + 5]);
#pragma unroll
            for (int r = 8 + 2 * h; r < score_registers; r += 8) {
                most = fmaxf(most, fmaxf(s[r], s[r + 1]));
                more = fmaxf(more, fmaxf(s[r + 4], s[r + 5]));
            }
            most = fmaxf(most, more);
            most = fmaxf(most, __shfl_xor_sync(all_lanes, most, 1));
            most = fmaxf(most, __shfl_xor_sync(all_lanes, most, 2));
            const float now = reference_of(top[h], most, scale);
            factor[h] = rescaling(top[h], now);
            top[h] = now;
            const float below = now == -INFINITY ? 0.0f : -now;
#pragma unroll
            for (int r = 2 * h; r < score_registers; r += 4) {
                s[r] = exp2_of(fmaf(s[r], scale, below));
                s[r + 1] = exp2_of(fmaf(s[r + 1], scale, below));
            }
            // Rows 2 c and 2 c + 1 of the tiles, each with the row eight further; half a run is four tiles.
            const auto half = [&](int first) {
                const auto tile = [&](int i) { return s[8 * i + first] + s[8 * i + 4 + first]; };
                return (tile(0) + tile(1)) + (tile(2) + tile(3));
            };
            even[h] = fmaf(even[h], factor[h], half(2 * h)) + half(32 + 2 * h);
            odd[h] = fmaf(odd[h], factor[h], half(2 * h + 1)) + half(33 + 2 * h);
        }
    }
    static __device__ void pack(uint32_t (&p)[operands], const float (&s)[score_registers]) {
#pragma unroll
        for (int i = 0; i < operands; ++i) p[i] = Kv::pack(s[2 * i], s[2 * i + 1]);
    }

    // Saves reference and sum of exponentials of softmax()'s group. The next group may begin before this one's values
    // are added.
    __device__ void close_group() {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float all = even[h] + odd[h];
            all += __shfl_xor_sync(all_lanes, all, 1);
            all += __shfl_xor_sync(all_lanes, all, 2);
            group_top[h] = top[h], group_sum[h] = all;
        }
    }
    // Adds the closed group's sums to the total.
    __device__ void end_group(float (&o)[registers], bool first, bool last) {
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
                o[r] = fmaf(other[0], o[r], own[0] * before.x);
                o[r + 1] = fmaf(other[0], o[r + 1], own[0] * before.y);
                o[r + 2] = fmaf(other[1], o[r + 2], own[1] * before.z);
                o[r + 3] = fmaf(other[1], o[r + 3], own[1] * before.w);
            }
        }
        if (last) return;
#pragma unroll
        for (int r = 0; r < registers; r += 4) total[r / 4 * 128] = {o[r], o[r + 1], o[r + 2], o[r + 3]};
    }

    __device__ void store(const float (&o)[registers]) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = thread / 32 * 16 + lane / 4 + 8 * h, column = first_column + row;
            if (row >= columns) continue;
            const int64_t head =
                (int64_t{unit.row} + column / per_head) * args.q_heads + kv_head * per_head + column % per_head;
            uint32_t* out = reinterpret_cast<uint32_t*>(args.out + head * (2 * Dims)) + lane % 4;
            float factor = 1.0f;
            if (args.sinks)
                factor = add_sink(args.sinks[head % args.q_heads] * std::numbers::log2e_v<float>, total_top[h],
                                  total_sum[h]);
            if (args.log_sums && lane % 4 == 0) args.log_sums[head] = total_top[h] + log2f(total_sum[h]);
            const float scale = output_scale(total_sum[h], args.v_scales ? args.v_scales[kv_head] : 1.0f) * factor;
#pragma unroll
            for (int r = 0; r < registers; r += 4)
                out[r] = Bf16Kv::pack(output_of(o[r + 2 * h], scale), output_of(o[r + 2 * h + 1], scale));
        }
    }

private:
    const AttentionArgs& args;
    const AttentionPrefill& unit;
    const int kv_head, per_head, worker;
    uint8_t* memory;
    const int thread, lane, first_column, columns;
    int position[2], lowest, highest;
    float top[2], even[2], odd[2], group_top[2], group_sum[2], total_top[2], total_sum[2];
};

template <class Kv, int Dims>
__global__ void __launch_bounds__(prefill_threads, 1)
    sm90_attention_prefill_kernel(const __grid_constant__ AttentionArgs args) {
    using L = PrefillLayout<Dims>;
    extern __shared__ __align__(128) uint8_t shared_bytes[];
    const uint32_t unaligned = shared_address(shared_bytes), base = (unaligned + 1023u) & ~1023u;
    uint8_t* memory = shared_bytes + (base - unaligned);
    // Barriers of keys, then of values.
    const uint32_t full = base + L::barriers_at, empty = full + 16 * L::stages;
    constexpr uint32_t values = 8 * L::stages;
    const int group = __shfl_sync(all_lanes, static_cast<int>(threadIdx.x) / 128, 0);
    if (threadIdx.x == 0) {
        for (int s = 0; s < 2 * L::stages; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, workers);
        }
        barrier_init_done();
    }
    __syncthreads();
    start(args.overlap);
    const AttentionCounts counts = *reinterpret_cast<const AttentionCounts*>(args.work);
    Items items{counts.prefills * args.kv_heads};
    if (group == workers) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x % 128 != 0) return;
        Place<L::stages> at;
        for (int item = items.next(); item < items.total; item = items.next()) {
            const AttentionPrefill unit = read_prefill(args, counts, item, items.total);
            const uint8_t* from =
                args.scratch + (int64_t{unit.scratch} * args.kv_heads + item % args.kv_heads) * L::run_bytes;
            for (int run = 0; run < unit.runs; ++run, from += int64_t{args.kv_heads} * L::run_bytes) {
                for (int half = 0; half < 2; ++half) {
                    const uint32_t barrier = 8 * at.slot + half * values;
                    barrier_wait(empty + barrier, at.parity ^ 1);
                    barrier_expect(full + barrier, L::half_bytes);
                    bulk_copy(base + half * L::values_at + at.slot * L::half_bytes, from + half * L::half_bytes,
                              L::half_bytes, full + barrier);
                }
                at.next();
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    Place<L::stages> k, v;
    const bool speaks = threadIdx.x % 128 == 0;
    if (ping_pong<Dims> && group == 1) asm volatile("bar.arrive 3, 256;" ::: "memory");
    int item = items.next();
    AttentionPrefill next = read_prefill(args, counts, item, items.total);
    Queries<Kv, Dims> queries;
    queries.load(args, next, item % args.kv_heads, group);
    uint8_t* own_q = memory + L::q_at + group * L::q_bytes;
#pragma unroll 1
    while (item < items.total) {
        const AttentionPrefill unit = next;
        const int kv_head = item % args.kv_heads;
        const ScoreScales scale(args, kv_head);
        Worker<Kv, Dims> worker(args, unit, kv_head, group, memory);
        // Products of other warps may still read the old ones.
        asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
        queries.store(own_q);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
        float s[run_tokens / 2], o[Dims / 2], factor[2];
        uint32_t p[run_tokens / 4];
#pragma unroll
        for (float& x : o) x = 0.0f;
        const int last = unit.first_run + unit.runs - 1;
        barrier_wait(full + 8 * k.slot, k.parity);
        worker.scores(s, base, k.slot);
        wgmma_wait<0>();
        barrier_arrive_if(empty + 8 * k.slot, speaks);
        k.next();
        worker.softmax(s, factor, unit.first_run * run_tokens, scale, true);
        worker.pack(p, s);
        bool first_run = true, first_group = true;  // first run of the group; first of all groups
        int run = unit.first_run;
        // Computes the scores of the next run and the values of the current one. `fold`: first adds the previous
        // group's sums to the total while the scores are computed (heads of 64, whose scores are short, are 13 % slower
        // with it).
        const auto step = [&](auto fold) {
            const bool ends = run % group_runs == group_runs - 1;
            barrier_wait(full + 8 * k.slot, k.parity);
            if (ping_pong<Dims>) asm volatile("bar.sync %0, 256;" ::"r"(3 + group) : "memory");
            worker.scores(s, base, k.slot);
            if constexpr (fold) {
                worker.end_group(o, first_group, false);
                first_group = false;
                wgmma_wait<0>();
            }
            barrier_wait(full + values + 8 * v.slot, v.parity);
            worker.values(o, p, base, v.slot, first_run);
            if (ping_pong<Dims>) asm volatile("bar.arrive %0, 256;" ::"r"(4 - group) : "memory");
            if constexpr (!fold) wgmma_wait<1>();
            barrier_arrive_if(empty + 8 * k.slot, speaks);
            k.next();
            if (ends) worker.close_group();
            worker.softmax(s, factor, (run + 1) * run_tokens, scale, ends);
            wgmma_wait<0>();
            barrier_arrive_if(empty + values + 8 * v.slot, speaks);
            v.next();
            if (!ends && __any_sync(all_lanes, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
                for (int r = 0; r < Dims / 2; ++r) o[r] *= factor[r / 2 % 2];
            }
            worker.pack(p, s);
            first_run = ends;
            ++run;
        };
        const auto fold_here = [&] {
            worker.end_group(o, first_group, false);
            first_group = false;
        };
#pragma unroll 1
        while (run < last) {
            const bool fold = run > unit.first_run && first_run;
            if constexpr (Dims == 128) {
                if (fold)
                    step(std::true_type{});
                else
                    step(std::false_type{});
            } else {
                if (fold) fold_here();
                step(std::false_type{});
            }
        }
        if (run > unit.first_run && first_run) fold_here();
        barrier_wait(full + values + 8 * v.slot, v.parity);
        worker.values(o, p, base, v.slot, first_run);
        worker.close_group();
        item = items.next();
        next = read_prefill(args, counts, item, items.total);
        queries.load(args, next, item % args.kv_heads, group);
        wgmma_wait<0>();
        barrier_arrive_if(empty + values + 8 * v.slot, speaks);
        v.next();
        worker.end_group(o, first_group, true);
        worker.store(o);
    }
}

template <class Visit>
cudaError_t visit(KvType type, int dims, Visit visit) {
    if (type == KvType::bf16)
        return dims == 64 ? visit(sm90_attention_prefill_kernel<Bf16Kv, 64>, PrefillLayout<64>::bytes)
                          : visit(sm90_attention_prefill_kernel<Bf16Kv, 128>, PrefillLayout<128>::bytes);
    return dims == 64 ? visit(sm90_attention_prefill_kernel<E4m3Kv, 64>, PrefillLayout<64>::bytes)
                      : visit(sm90_attention_prefill_kernel<E4m3Kv, 128>, PrefillLayout<128>::bytes);
}

}  // namespace

cudaError_t prepare_prefill(KvType type, int dims) {
    return visit(type, dims, [](auto kernel, int bytes) {
        return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    });
}

cudaError_t launch_prefill(const AttentionArgs& args, KvType type, int dims, int blocks, cudaStream_t stream) {
    return visit(type, dims, [&](auto kernel, int bytes) {
        return launch_kernel(kernel, dim3(static_cast<unsigned>(blocks)), prefill_threads, bytes, args, stream);
    });
}

}  // namespace nibble::cuda
