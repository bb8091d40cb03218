// Instructions for kernels with persistent, cooperating thread blocks, in addition to ptx.cuh.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace nibble::cuda {

// ---- Between thread blocks ----------------------------------------------------------------------------------------

// Writes of a thread before count_up() (and, after a block barrier, those of its block) are visible to threads that
// have read the new count.
__device__ inline void count_up(unsigned long long* word) {
    asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(word) : "memory");
}
__device__ inline unsigned long long count_of(const unsigned long long* word) {
    unsigned long long seen;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(word) : "memory");
    return seen;
}

// hand() publishes a value that other thread blocks poll for. Each value is seen whole, in no defined order.
__device__ inline void hand(float* to, float v) {
    asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(v) : "memory");
}
__device__ inline void hand(uint16_t* to, uint16_t v) {
    asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" ::"l"(to), "h"(v) : "memory");
}
__device__ inline void hand(uint8_t* to, uint8_t v) {
    asm volatile("st.relaxed.gpu.global.u8 [%0], %1;" ::"l"(to), "h"(static_cast<uint16_t>(v)) : "memory");
}
__device__ inline uint2 look8(const void* at) {
    uint2 v;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at) : "memory");
    return v;
}
__device__ inline uint4 look16(const void* at) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
}

__device__ inline void prefetch_to_l2(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

// ---- Inside a thread block ----------------------------------------------------------------------------------------

// Synchronizes the first `Threads` threads.
template <int Threads>
__device__ void meet_warps() {
    asm volatile("bar.sync 1, %0;" ::"n"(Threads) : "memory");
}

// Returns the thread index opaquely: otherwise the compiler keeps values derived from it in local memory over a long
// kernel.
__device__ inline int opaque_thread() {
    int thread = static_cast<int>(threadIdx.x);
    asm volatile("" : "+r"(thread));
    return thread;
}

// Loads from shared memory that the copy engine writes.
__device__ __forceinline__ uint4 load_shared16(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}
__device__ __forceinline__ uint2 load_shared8(uint32_t at) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}

}  // namespace nibble::cuda
