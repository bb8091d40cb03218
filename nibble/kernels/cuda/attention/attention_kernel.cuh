// Attention of up to 16 columns (query token, head) of a KV head at a time. A thread block processes units one after
// the other, and a unit's positions in passes. The warps split the positions for scores and exponentials, which are
// exchanged through shared memory, and split the dimensions for the values, so a group's sums are one chain in
// registers. Keys and values arrive in a ring of slots, the keys or values of one pass per slot, across units. A
// separate warpgroup loads them (loading by the computing warps between the barriers of a pass took 64.8 and 38.4 us
// instead of 62.0 and 33.2 at 16 x 4096, BF16 and E4M3, including the merge kernel).
#pragma once

#include "kernels/cuda/attention/attention_merge.cuh"
#include "kernels/cuda/attention/attention_pass.cuh"

namespace nibble::cuda {

__device__ inline void computing_sync() { asm volatile("bar.sync 1, %0;" ::"n"(32 * attention_warps) : "memory"); }

// Runs one of the loading warps.
template <class L, class Kv, KvDims Dims>
__device__ void ask_for_tiles(const AttentionArgs& args, uint32_t base, const ItemCursor& first, int warp, int lane) {
    constexpr int own = L::pass_tiles / asking_warps;
    TileCursor<Kv, Dims, own> cursor(args, warp, lane, first);
    uint32_t slot = 0, parity = 1;
    bool may_be_written = args.overlap;
    while (!cursor.done) {
        if (may_be_written && cursor.now.fresh) {
            wait_for_previous();
            may_be_written = false;
        }
        barrier_wait(base + L::barriers_at + 8 * (L::slots + slot), parity);
        cursor.ask(base + slot * L::slot_bytes + warp * own * L::half_bytes, L::half_bytes,
                   base + L::barriers_at + 8 * slot);
        if (++slot == L::slots) slot = 0, parity ^= 1;
    }
}

// Template parameters are numbers, because nvcc cannot name a kernel after a structure.
template <class Kv, int KDims, int VDims, int Columns>
__global__ void __launch_bounds__(32 * (attention_warps + asking_warps), 1)
    attention_kernel(const __grid_constant__ AttentionArgs args) {
    constexpr KvDims Dims{KDims, VDims};
    using L = AttentionLayout<Kv, Dims, Columns>;
    extern __shared__ __align__(128) uint8_t shared[];
    const int warp = __shfl_sync(all_lanes, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
    const int group = args.q_heads / args.kv_heads;
    ItemCursor item(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), __ldg(args.work), args.kv_heads);
    const uint32_t base = shared_address(shared), full = base + L::barriers_at, empty = full + 8 * L::slots;
    if (threadIdx.x < L::slots) {
        barrier_init(full + 8 * threadIdx.x, asking_warps);
        barrier_init(empty + 8 * threadIdx.x, attention_warps);
    }
    barrier_init_done();
    __syncthreads();
    if (args.overlap) overlap_next();
    if (warp >= attention_warps) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        ask_for_tiles<L, Kv, Dims>(args, base, item, warp - attention_warps, lane);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    AttentionUnit unit = read_unit(args, item);
    if (args.overlap) wait_for_previous();
    uint32_t slot = 0, parity = 0;
    const auto wait = [&]() -> const uint8_t* {
        barrier_wait(full + 8 * slot, parity);
        return shared + slot * L::slot_bytes;
    };
    // One lane arrives for its warp; racecheck reports reads by the others.
    const auto free_slot = [&] {
        loads_done();
        __syncwarp();
        barrier_arrive_if(empty + 8 * slot, lane == 0);
        if (++slot == L::slots) slot = 0, parity ^= 1;
    };

    uint32_t q[L::tiles][Dims.k / 8] = {};
    // Starts a load for the next unit.
    const auto load_q = [&](const AttentionUnit& of, const ItemCursor& at) {
#pragma unroll
        for (int n = 0; n < L::tiles; ++n) {
            const int place = 8 * n + g, column = of.column + place;
            const bool exists = at.more() && place < of.columns;
            const int64_t head = (int64_t{of.row} + column / group) * args.q_heads + at.head * group + column % group;
            const uint8_t* from = args.q + head * args.k_dim * 2;
#pragma unroll
            for (int i = 0; i < Dims.k / 32; ++i) {
                const int d = Kv::q_dim(i, c);
                uint4 v{0, 0, 0, 0};
                if (exists && d < args.k_dim) v = *reinterpret_cast<const uint4*>(from + 2 * d);
                q[n][4 * i] = v.x, q[n][4 * i + 1] = v.y, q[n][4 * i + 2] = v.z, q[n][4 * i + 3] = v.w;
            }
        }
    };
    load_q(unit, item);
    using Sums = AttentionSums<L, Kv, Dims>;
    Sums sums{.memory = shared, .warp = warp, .lane = lane};
#pragma unroll 1
    while (item.more()) {
        const int head = item.head;
        item = item.next();
        const AttentionUnit next = read_unit(args, item);
#pragma unroll
        for (auto& each : q)
#pragma unroll
            for (uint32_t& pair : each) pair = Kv::operand_of(pair);
        const ScoreScales scales(args, head);
        sums.scale = scales.log2;
        const UnitTiles seen(unit.first_group, unit.groups, unit.first_seen, unit.last_seen);
        typename Sums::State total;
        total.clear();
        sums.group.clear();
        const int last_pass = seen.last / L::pass_tiles;
#pragma unroll 1
        for (int pass = seen.first / L::pass_tiles; pass <= last_pass; ++pass) {
            const int own_position = (pass * L::pass_tiles + warp * L::per_warp) * kv_tile_tokens;
            sums.score(wait(), q);
            free_slot();
            if (scales.cap > 0) sums.cap(scales.cap);
            const bool all_see = own_position + L::per_warp * kv_tile_tokens - 1 <= unit.lowest &&
                                 own_position > unit.last_seen - keys_seen(args, unit.last_seen);
            if (!all_see) {
                int of_query[L::tiles][2], seen_keys[L::tiles][2];
#pragma unroll
                for (int n = 0; n < L::tiles; ++n)
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const int position = unit.position + (unit.column + 8 * n + 2 * c + h) / group;
                        of_query[n][h] = position - own_position;
                        seen_keys[n][h] = keys_seen(args, position);
                    }
                sums.hide(of_query, seen_keys);
            }
            sums.leave_tops();
            computing_sync();
            sums.exponentials();
            computing_sync();
            if (pass == last_pass) load_q(next, item);
            const int first_tile = pass * L::pass_tiles, end_tile = min(L::pass_tiles, seen.last + 1 - first_tile);
            sums.add_values(wait(), max(0, seen.first - first_tile), end_tile,
                            unit.last_seen + 1 - (first_tile + end_tile - 1) * kv_tile_tokens);
            free_slot();
            const int end = (pass + 1) * L::pass_tokens;
            if (end % group_tokens && pass < last_pass) continue;
            sums.end_group();
            if (unit.partial >= 0) {
                const int64_t place =
                    (int64_t{unit.partial + (end - 1) / group_tokens - unit.first_group} * args.kv_heads + head) *
                    L::columns;
#pragma unroll
                for (int n = 0; n < L::tiles; ++n)
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const int column = 8 * n + 2 * c + h;
                        if (column >= unit.columns) continue;
                        if (warp == 0 && g == 0)
                            args.tops[place + column] = {sums.group.top[n][h], sums.group.sum[n][h]};
                        if (warp >= L::busy) continue;
                        float* to = args.sums + (place + column) * Dims.v + 16 * warp * L::slices + 2 * g;
#pragma unroll
                        for (int s = 0; s < L::slices; ++s)
                            *reinterpret_cast<float2*>(to + 16 * s) = {sums.group.o[s][n][h],
                                                                       sums.group.o[s][n][h + 2]};
                    }
            } else {
                total.add(sums.group);
            }
            sums.group.clear();
        }
        if (unit.partial >= 0) {
            // The last thread block to finish merges.
            int* last = reinterpret_cast<int*>(shared + L::last_at);
            const int32_t* m = args.work + args.work[2] + unit.merge * merge_words;
            const AttentionMerge merge{m[0], m[1], m[2], m[3], m[4]};
            computing_sync();  // all sums are written before the count, which makes them visible
            if (threadIdx.x == 0) {
                int32_t* left = args.work + args.work[1] + unit.merge * args.kv_heads + head;
                *last = add_and_see(left, unit.groups) + unit.groups == merge.count;
                if (*last) *left = 0;
            }
            computing_sync();
            if (*last)
                merge_groups<L::columns, Dims.v, 32 * attention_warps>(args, merge, head,
                                                                       static_cast<int>(threadIdx.x));
        }
        if (unit.partial < 0 && warp < L::busy) {
            const float v_scale = args.v_scales ? args.v_scales[head] : 1.0f;
#pragma unroll
            for (int n = 0; n < L::tiles; ++n)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int column = 8 * n + 2 * c + h;
                    if (column >= unit.columns) continue;
                    const int place = unit.column + column;
                    const int64_t to =
                        (int64_t{unit.row} + place / group) * args.q_heads + head * group + place % group;
                    float factor = 1.0f;
                    if (args.sinks)
                        factor = add_sink(args.sinks[head * group + place % group] * std::numbers::log2e_v<float>,
                                          total.top[n][h], total.sum[n][h]);
                    if (args.log_sums && threadIdx.x < 4)  // every thread has the sums of all columns
                        args.log_sums[to] = total.top[n][h] + log2f(total.sum[n][h]);
                    const float scale = output_scale(total.sum[n][h], v_scale) * factor;
#pragma unroll
                    for (int s = 0; s < L::slices; ++s) {
                        const int d = 16 * (warp * L::slices + s) + 2 * g;
                        if (d >= args.v_dim) continue;
                        *reinterpret_cast<uint32_t*>(args.out + (to * args.v_dim + d) * 2) =
                            Bf16Kv::pack(output_of(total.o[s][n][h], scale), output_of(total.o[s][n][h + 2], scale));
                    }
                }
        }
        unit = next;
    }
}

template <class Kv, class Visit>
cudaError_t visit_attention(const AttentionKernelShape& s, Visit visit) {
    const auto with = [&]<KvDims Dims>() {
        if (s.columns == 8) return visit(attention_kernel<Kv, Dims.k, Dims.v, 8>, AttentionLayout<Kv, Dims, 8>{});
        if constexpr (Dims.k < 256)
            if (s.columns == 16)
                return visit(attention_kernel<Kv, Dims.k, Dims.v, 16>, AttentionLayout<Kv, Dims, 16>{});
        if constexpr (Dims.k <= 128)
            if (s.columns == 4) return visit(attention_kernel<Kv, Dims.k, Dims.v, 4>, AttentionLayout<Kv, Dims, 4>{});
        return cudaErrorInvalidValue;
    };
    if (s.dims == KvDims{64, 64}) return with.template operator()<KvDims{64, 64}>();
    if (s.dims == KvDims{128, 128}) return with.template operator()<KvDims{128, 128}>();
    if (s.dims == KvDims{192, 128}) return with.template operator()<KvDims{192, 128}>();
    if (s.dims == KvDims{256, 256}) return with.template operator()<KvDims{256, 256}>();
    if (s.dims == KvDims{512, 512}) return with.template operator()<KvDims{512, 512}>();
    return cudaErrorInvalidValue;
}

template <class Kv>
cudaError_t prepare_attention(const AttentionKernelShape& shape, int* blocks_per_multiprocessor) {
    return visit_attention<Kv>(shape, [&](auto kernel, auto layout) {
        if (const cudaError_t code =
                cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, layout.bytes))
            return code;
        return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks_per_multiprocessor, kernel, layout.threads,
                                                             layout.bytes);
    });
}

template <class Kv>
cudaError_t launch_attention(const AttentionArgs& args, const AttentionKernelShape& shape, int blocks,
                             cudaStream_t stream) {
    return visit_attention<Kv>(shape, [&](auto kernel, auto layout) {
        cudaLaunchAttribute attribute{};
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t config{};
        config.gridDim = static_cast<unsigned>(blocks);
        config.blockDim = layout.threads;
        config.dynamicSmemBytes = layout.bytes;
        config.stream = stream;
        config.attrs = &attribute;
        config.numAttrs = args.overlap ? 1 : 0;
        return cudaLaunchKernelEx(&config, kernel, args);
    });
}

}  // namespace nibble::cuda
