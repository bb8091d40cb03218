// Device code shared by the two kernels of fused decoding (kernels/fused_decode_cuda.h), FP8 and W4A16: the grid
// barrier, the hand-over of values through sentinels, the ring buffer of weights, RMSNorm between two products, rotary
// embedding after the last one, and the launch.
//
// A thread block has `Threads` threads that multiply, numbered from 0, and one warp after them that requests weights.
// Unless a comment says otherwise, functions are called by all threads that multiply.
#pragma once

#include "kernels/cuda/matmul/fused_decode/fused_decode_launch.h"
#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/cuda/primitives/grid.cuh"
#include "kernels/cuda/primitives/rope.cuh"

namespace nibble::cuda::fused {

// Copies the kernel's arguments to shared memory. In the constant cache they are cold at every launch, and the first
// use of each cache line would wait for memory after the requests for weights.
__device__ inline FusedDecodeArgs& shared_arguments(uint8_t* to, const FusedDecodeArgs& given) {
    for (uint32_t i = threadIdx.x; i < sizeof(FusedDecodeArgs) / 4; i += blockDim.x)
        reinterpret_cast<uint32_t*>(to)[i] = reinterpret_cast<const uint32_t*>(&given)[i];
    return *reinterpret_cast<FusedDecodeArgs*>(to);
}

// Grid barrier. After wait() all thread blocks have arrived, and what their threads wrote before is visible. The
// counter grows by the number of thread blocks at every use and is never reset.
template <int Threads>
struct Meeting {
    unsigned long long* word;
    unsigned long long target = 0;

    // Call after the wait for the previous kernel, which may use the same counter.
    __device__ void begin() {
        if (threadIdx.x == 0) target = count_of(word) / gridDim.x * gridDim.x;
    }
    __device__ void wait() {
        meet_warps<Threads>();
        if (threadIdx.x == 0) {
            target += gridDim.x;
            count_up(word);
            while (count_of(word) < target) {
            }
        }
        meet_warps<Threads>();
    }
};

// Hand-over between two products without a grid barrier. The memory holds a sentinel, all bits set, before a value is
// written, and readers poll until no sentinel is left. No product writes the sentinel: a NaN made by arithmetic is
// 0x7FFFFFFF, in BF16 0x7FFF, in E4M3 0x7F. A grid barrier (fence, count, one more trip to memory) takes three
// microseconds while weights stream.
__device__ inline bool is_written(float v) { return __float_as_uint(v) != 0xFFFFFFFFu; }
// True if no lane of `Bits` bits in v is the sentinel.
template <int Bits>
__device__ bool are_written(const uint4& v) {
    constexpr uint32_t ones = Bits == 16 ? 0x00010001u : 0x01010101u, upper = ones << (Bits - 1);
    uint32_t found = 0;
    for (const uint32_t word : {v.x, v.y, v.z, v.w}) found |= ((word & ~upper) + ones) & word & upper;
    return found == 0;
}

// Fills the hand-over memory of the previous kernel with the sentinel again. Call after the wait for that kernel: then
// all of its thread blocks have read the memory.
template <int Threads>
__device__ void set_back(const FusedDecodeArgs& args) {
    const int grid = static_cast<int>(gridDim.x);
    for (int i = static_cast<int>(threadIdx.x) * grid + static_cast<int>(blockIdx.x); i < args.used_words;
         i += grid * Threads)
        args.used[i] = {0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu};
}

// Copies `count` words of 16 bytes to shared memory. Bits > 0: the words are lanes of that many bits which other thread
// blocks may still have to write; polls until no sentinel is left. Bits 0: all words are there already.
template <int Bits, int Threads>
__device__ void take_words(const uint8_t* from, int count, uint8_t* to) {
    constexpr int at_once = 4;
    for (int first = static_cast<int>(threadIdx.x); first < count; first += at_once * Threads) {
        uint4 v[at_once];
        bool all;
        do {
            all = true;
#pragma unroll
            for (int j = 0; j < at_once; ++j) v[j] = look16(from + 16 * min(first + j * Threads, count - 1));
            if constexpr (Bits > 0) {
#pragma unroll
                for (int j = 0; j < at_once; ++j) all = all && are_written<Bits>(v[j]);
            }
        } while (!all);
#pragma unroll
        for (int j = 0; j < at_once; ++j)
            if (first + j * Threads < count) reinterpret_cast<uint4*>(to)[first + j * Threads] = v[j];
    }
}

// Position in a ring buffer of weights in shared memory. Each slot has two mbarriers: `full` completes when the slot's
// bytes have arrived, `empty` when no warp needs them any more. `parity` is the phase of both, and flips at the end of
// the ring.
struct Ring {
    uint32_t base, full, empty;
    int slots;
    uint32_t slot = 0, parity = 0;

    __device__ void next(int count = 1) {
        slot += static_cast<uint32_t>(count);
        while (slot >= static_cast<uint32_t>(slots)) slot -= static_cast<uint32_t>(slots), parity ^= 1;
    }
};

__device__ inline float2 floats_of(uint32_t pair) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u)};
}

// The value of norm_scale(), with loads issued ahead of the additions. For a width of 4096 a lane adds 256 squares one
// after the other, which is most of the time of a norm.
__device__ inline float norm_scale_ahead(const float* row, int width, float eps) {
    constexpr int ahead = 4;
    const int lane = static_cast<int>(threadIdx.x) % sum_lanes, count = width / sum_lanes / 4;
    const float4* own = reinterpret_cast<const float4*>(row + lane * lane_pitch(width));
    float4 next[ahead];
    float sum = 0.0f;
    const auto add = [&](const float4& v) {
        sum = fmaf(v.x, v.x, sum), sum = fmaf(v.y, v.y, sum), sum = fmaf(v.z, v.z, sum), sum = fmaf(v.w, v.w, sum);
    };
#pragma unroll
    for (int i = 0; i < ahead; ++i) next[i] = own[min(i, count - 1)];
    int j = 0;
#pragma unroll 2
    for (; j + ahead <= count; j += ahead) {
        float4 v[ahead];
#pragma unroll
        for (int i = 0; i < ahead; ++i) v[i] = next[i], next[i] = own[min(j + ahead + i, count - 1)];
#pragma unroll
        for (int i = 0; i < ahead; ++i) add(v[i]);
    }
    for (; j < count; ++j) add(own[j]);
#pragma unroll
    for (int half = sum_lanes / 2; half > 0; half /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, half);
    return 1.0f / sqrtf(sum / static_cast<float>(width) + eps);
}

// The residual stream of the token, which every thread block keeps from norm to norm: in shared memory at `kept` (Kept)
// or in registers. Pairs: pairs of columns per thread.
template <int Pairs, int Threads, bool Kept = false>
struct Stream {
    float* row;                // shared memory: norm_shared_bytes(), and one more float
    uint32_t* kept = nullptr;  // shared memory, with Kept: one word per pair of columns
    uint32_t h[Pairs] = {};
    float2 weight[Pairs] = {};
    bool summed = false;  // h is loaded and holds all updates so far

    // Loads the weights of the next norm. Call long before the norm: after the requests for weights of all thread
    // blocks, the loads take microseconds.
    __device__ void load_weight(const FusedDecodeArgs& args, const float* norm) {
        const float2* from = reinterpret_cast<const float2*>(norm);
        const int thread = Kept ? opaque_thread() : static_cast<int>(threadIdx.x);
#pragma unroll
        for (int j = 0; j < Pairs; ++j)
            if (const int pair = thread + j * Threads; pair < args.width / 2) weight[j] = from[pair];
    }
    // h += update, then RMSNorm of h with the bits of norm.cu; calls put(i, pair i in BF16). `row` is free again when
    // put() is called. handed: the update is the previous product's output, which may not be written yet; null update:
    // nothing is added.
    template <class Put>
    __device__ void norm(const FusedDecodeArgs& args, const ProductStep& step, const float* update, bool handed,
                         Put put) {
        const int width = args.width, pitch = lane_pitch(width);
        float* shared_scale = row + sum_lanes * pitch;
        float2 u[Pairs];
        const int thread = Kept ? opaque_thread() : static_cast<int>(threadIdx.x);
#pragma unroll
        for (int j = 0; j < Pairs; ++j) {
            const int pair = min(thread + j * Threads, width / 2 - 1);
            if (!summed)
                h[j] = __ldcg(reinterpret_cast<const uint32_t*>(args.h) + pair);
            else if constexpr (Kept)
                h[j] = kept[pair];
        }
        bool all = update == nullptr;
        while (!all) {
            all = true;
#pragma unroll
            for (int j = 0; j < Pairs; ++j) {
                const uint2 v = look8(update + 2 * min(thread + j * Threads, width / 2 - 1));
                u[j] = {__uint_as_float(v.x), __uint_as_float(v.y)};
            }
            if (!handed) break;
#pragma unroll
            for (int j = 0; j < Pairs; ++j) all = all && is_written(u[j].x) && is_written(u[j].y);
        }
        bool bad = false;
#pragma unroll
        for (int j = 0; j < Pairs; ++j) {
            const int pair = thread + j * Threads;
            if (pair >= width / 2) continue;
            if (update) {
                const float2 old = floats_of(h[j]), add = floats_of(pair_of(u[j].x, u[j].y));
                h[j] = pair_of(old.x + add.x, old.y + add.y);
                if (blockIdx.x == 0 && args.h_out) reinterpret_cast<uint32_t*>(args.h_out)[pair] = h[j];
            }
            const float2 v = floats_of(h[j]);
            bad = bad || !is_finite(v.x) || !is_finite(v.y);
            float* to = lane_place(row, pitch, 2 * pair);
            to[0] = v.x, to[pitch] = v.y;
            if constexpr (Kept) kept[pair] = h[j];
        }
        summed = true;
        if (bad && step.nonfinite && blockIdx.x == 0) atomicMin(step.nonfinite, 0);
        meet_warps<Threads>();
        if (threadIdx.x < 32) {
            const float scale = norm_scale_ahead(row, width, args.eps);
            if (threadIdx.x == 0) *shared_scale = scale;
        }
        meet_warps<Threads>();
        const float r = *shared_scale;
#pragma unroll
        for (int j = 0; j < Pairs; ++j)
            if (const int pair = thread + j * Threads; pair < width / 2) {
                const float2 v = floats_of(h[j]);
                put(pair, pair_of((v.x * r) * weight[j].x, (v.y * r) * weight[j].y));
            }
    }
};

__device__ inline void touch_angles(const RopeArgs& rope) {
    const int half = rope.rotary.dims / 2, lane = static_cast<int>(threadIdx.x) % 32;
    prefetch_to_l2(rope.slots);
    if (half == 0) return;
    const int64_t angles = int64_t{rope.rotary.positions[0]} * half;
    for (int i = 32 * lane; i < half; i += 32 * 32) {
        prefetch_to_l2(rope.rotary.cos + angles + i);
        prefetch_to_l2(rope.rotary.sin + angles + i);
    }
}

// Rotary embedding of q and k, and the cache append of k and v, after a grid barrier. An item is one head. Each warp
// takes an item, spread over the multiprocessors, and prefetches the angles of its first one before the barrier.
template <int Threads>
__device__ void rope_rows(const RopeArgs& rope, Meeting<Threads>& meeting) {
    const int grid = static_cast<int>(gridDim.x), items = rope.q_heads + 2 * rope.cache.kv_heads;
    const int first = static_cast<int>(threadIdx.x) / 32 * grid + static_cast<int>(blockIdx.x);
    if (first < items) touch_angles(rope);
    meeting.wait();
    for (int item = first; item < items; item += Threads / 32 * grid) rope_item(rope, 0, item);
}

// Launches one thread block per multiprocessor, of the multiplying threads and one warp that requests weights. All
// thread blocks must be resident at once, or they wait for each other for ever. They become resident because the
// kernels that run before do not wait for this kernel.
template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), int multiplying_threads, int shared_bytes, bool overlap,
                   int multiprocessors, cudaStream_t stream, const Arguments&... arguments) {
    // Set at every launch, because a process may use several devices.
    if (const cudaError_t code =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes))
        return code;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(multiprocessors);
    config.blockDim = static_cast<unsigned>(multiplying_threads + 32);
    config.dynamicSmemBytes = static_cast<unsigned>(shared_bytes);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace nibble::cuda::fused
