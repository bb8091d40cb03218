// Storage of a warpgroup's chunk sums until they are added: to its own later sums and to those of other thread blocks.
#pragma once

#include "kernels/cuda/matmul/w4a16/w4a16_decode.cuh"

#include <cuda_runtime.h>

#include <cstdint>

namespace nibble::cuda {

template <int Threads>
__device__ void group_barrier(int group) {
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(Threads) : "memory");
}

// [registers / 4][thread][4]
template <int Registers>
__device__ void store_sums(float* at, const float (&v)[Registers], int thread) {
#pragma unroll
    for (int r = 0; r < Registers; r += 4)
        asm volatile("st.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at + (r * 128 + thread * 4)), "f"(v[r]), "f"(v[r + 1]),
                     "f"(v[r + 2]), "f"(v[r + 3])
                     : "memory");
}
template <int Registers>
__device__ void add_sums(float (&v)[Registers], const float* at, int thread) {
#pragma unroll
    for (int r = 0; r < Registers; r += 4) {
        const float4 left = *reinterpret_cast<const float4*>(at + (r * 128 + thread * 4));
        v[r] = left.x + v[r], v[r + 1] = left.y + v[r + 1], v[r + 2] = left.z + v[r + 2], v[r + 3] = left.w + v[r + 3];
    }
}

// Registers [First, Count) of sums in shared memory: [registers / 4][thread][4].
template <int First, int Count>
__device__ void park_sums(float* at, const float (&v)[Count], int thread) {
#pragma unroll
    for (int r = First; r < Count; r += 4)
        *reinterpret_cast<float4*>(at + (r - First) * 128 + thread * 4) = {v[r], v[r + 1], v[r + 2], v[r + 3]};
}
template <int First, int Count>
__device__ void add_parked(float (&v)[Count], const float* at, int thread) {
#pragma unroll
    for (int r = First; r < Count; r += 4) {
        const float4 left = *reinterpret_cast<const float4*>(at + (r - First) * 128 + thread * 4);
        v[r] = left.x + v[r], v[r + 1] = left.y + v[r + 1], v[r + 2] = left.z + v[r + 2], v[r + 3] = left.w + v[r + 3];
    }
}

template <int Registers>
__device__ void store_slice(float* at, const float (&v)[Registers], int thread) {
    float2* to = reinterpret_cast<float2*>(at) + thread;
#pragma unroll
    for (int r = 0; r < Registers; r += 2) __stcg(to + r / 2 * 128, float2{v[r], v[r + 1]});
}
// Reads through L2: this multiprocessor's L1 may hold old data.
template <int Registers>
__device__ void add_slice(float (&v)[Registers], const float* at, int thread) {
    const float2* from = reinterpret_cast<const float2*>(at) + thread;
#pragma unroll
    for (int r = 0; r < Registers; r += 2) {
        const float2 other = __ldcg(from + r / 2 * 128);
        v[r] += other.x, v[r + 1] += other.y;
    }
}

// Access to 4, 2 or 1 floats through L2.
template <int Width>
__device__ void store_wide(float* to, const float* v) {
    if constexpr (Width == 4)
        __stcg(reinterpret_cast<float4*>(to), float4{v[0], v[1], v[2], v[3]});
    else if constexpr (Width == 2)
        __stcg(reinterpret_cast<float2*>(to), float2{v[0], v[1]});
    else
        __stcg(to, v[0]);
}
template <int Width>
__device__ void load_wide(float* v, const float* from) {
    if constexpr (Width == 4) {
        const float4 x = __ldcg(reinterpret_cast<const float4*>(from));
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
    } else if constexpr (Width == 2) {
        const float2 x = __ldcg(reinterpret_cast<const float2*>(from));
        v[0] = x.x, v[1] = x.y;
    } else {
        v[0] = __ldcg(from);
    }
}

// Two warpgroups arrive at a node. Returns true for the second, once the first has called leave_node.
__device__ inline bool second_at_node(uint32_t* node) {
    uint32_t before;
    asm volatile("atom.add.relaxed.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(node) : "memory");
    if (before == 0) return false;
    uint32_t now;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(node) : "memory");
    } while (now < 4);
    *node = 0;  // restores the initial value
    return true;
}
__device__ inline void leave_node(uint32_t* node) {
    asm volatile("red.add.release.gpu.global.u32 [%0], 4;" ::"l"(node) : "memory");
}

// Adds the sums of `Parts` (a power of two) warpgroups along K. Each ends with the total of its slice of the registers,
// [part * Registers / Parts, ...), in its first registers. All must run at the same time: thread blocks start in the
// order of their numbers and those of one exchange are adjacent, so at most one exchange of a launch waits for blocks
// to start, while the others end and free their place. *node is zero before and after; slots[Parts][Registers][128].
template <int Parts, int Registers>
__device__ void exchange_sums(float (&sums)[Registers], uint32_t* node, float* slots, int part, int group, int thread) {
    constexpr int slice = Registers / Parts, width = slice < 4 ? slice : 4;
    static_assert(slice >= 1);
    float* own = slots + int64_t{part} * (Registers * 128) + thread * width;
#pragma unroll
    for (int p = 0; p < Parts; ++p)
        if (p != part)
#pragma unroll
            for (int r = p * slice; r < (p + 1) * slice; r += width) store_wide<width>(own + r * 128, sums + r);
    group_barrier<128>(group);
    if (thread == 0) {
        asm volatile("red.add.release.gpu.global.u32 [%0], 1;" ::"l"(node) : "memory");
        uint32_t now;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(node) : "memory");
        } while ((now & 0xFFFFu) < Parts);
    }
    group_barrier<128>(group);
    const float* others = slots + part * (slice * 128) + thread * width;
#pragma unroll
    for (int p = 0; p < Parts; ++p)
        if (p != part)
#pragma unroll
            for (int r = 0; r < slice; r += width)
                load_wide<width>(sums + (p * slice + r), others + (int64_t{p} * Registers + r) * 128);
    if (thread == 0) {  // the last one to have seen all restores the node
        uint32_t before;
        asm volatile("atom.add.relaxed.gpu.global.u32 %0, [%1], 65536;" : "=r"(before) : "l"(node) : "memory");
        if (before >> 16 == Parts - 1) *node = 0;
    }
#pragma unroll
    for (int r = 0; r < slice; ++r) {
        float v[Parts];
#pragma unroll
        for (int p = 0; p < Parts; ++p) v[p] = sums[p * slice + r];
        sums[r] = tree_sum(v);
    }
}

// Adds the sums of `leaves` (a power of two) warpgroups along K pairwise in a tree whose node n has the children 2 n
// and 2 n + 1. Returns true for the warpgroup with the total. nodes[leaves], slots[leaves][128 * Registers].
template <int Registers>
__device__ bool climb_nodes(float (&sums)[Registers], uint32_t* nodes, float* slots, int leaves, int leaf, int group,
                            int thread, uint32_t* is_last) {
    bool last = true;
    for (int node = (leaves + leaf) / 2; last && node > 0; node /= 2) {
        if (thread == 0) *is_last = second_at_node(nodes + node);
        group_barrier<128>(group);
        last = *is_last;
        float* slot = slots + int64_t{node} * (Registers * 128);
        if (last) {
            add_slice(sums, slot, thread);
            group_barrier<128>(group);  // the flag is read before it is written again
        } else {
            store_slice(slot, sums, thread);
            group_barrier<128>(group);
            if (thread == 0) leave_node(nodes + node);
        }
    }
    return last;
}

}  // namespace nibble::cuda
