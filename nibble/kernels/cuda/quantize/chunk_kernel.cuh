// The common structure of kernels whose blocks lie inside a row: a thread reads a few chunks of 16 elements, with all
// loads in flight before the first use, and passes each to an operation. Consecutive lanes have consecutive chunks.
// Persistent grids, and lane-pair shuffles for fully coalesced loads, were slower (reference prototypes, H200).
//
//   struct Op {                          // copied to the device
//       using Input = Bf16 or F32;
//       static constexpr int per_thread, min_blocks;  // chunks a thread, blocks a multiprocessor must hold
//       static constexpr bool shared_state;           // State is made once per block, else by every thread
//       struct State;                    // from maxima on the device
//       __device__ State begin(bool first) const;
//       // All lanes of a warp come here together; `valid` is false past the end, `at` is the chunk in memory.
//       __device__ void chunk(State&, Chunk<Input>&, const uint8_t* at, int64_t index, bool valid) const;
//       __device__ void end(State&) const;
//   };
#pragma once

#include "kernels/cuda/primitives/block16.cuh"

#include <cuda_runtime.h>

#include <type_traits>

namespace nibble::cuda {

inline constexpr int chunk_threads = 128;

// 128 bytes in flight per thread for both input types.
template <class Input>
inline constexpr int usual_per_thread = 128 / Chunk<Input>::bytes;
inline constexpr int usual_min_blocks = 8;

// State shared by the whole tensor, computed while loads are in flight: by every thread if it is cheap, by one thread
// per block if not.
template <class Op>
__device__ typename Op::State begin_state(const Op& op, bool first) {
    if constexpr (Op::shared_state) {
        using State = typename Op::State;
        static_assert(std::is_trivially_copyable_v<State>);
        __shared__ alignas(16) unsigned char shared[sizeof(State)];
        if (threadIdx.x == 0) *reinterpret_cast<State*>(shared) = op.begin(first);
        __syncthreads();
        return *reinterpret_cast<const State*>(shared);
    } else {
        return op.begin(first);
    }
}

template <int PerThread, bool Full, class Op>
__device__ void run_chunks(const uint8_t* __restrict__ data, int64_t first, int64_t chunks, const Op& op) {
    using C = Chunk<typename Op::Input>;
    const uint8_t* at = data + first * C::bytes;
    C w[PerThread];
#pragma unroll
    for (int k = 0; k < PerThread; ++k)
        if (Full || first + k * chunk_threads < chunks)
            w[k].load(at + k * chunk_threads * C::bytes);
        else
            w[k].clear();
    auto state = begin_state(op, first == 0);
#pragma unroll
    for (int k = 0; k < PerThread; ++k) {
        const int64_t index = first + k * chunk_threads;
        op.chunk(state, w[k], at + k * chunk_threads * C::bytes, index, Full || index < chunks);
    }
    op.end(state);
}

template <class Op, int PerThread>
__global__ void __launch_bounds__(chunk_threads)
    quantize_chunk_kernel(const uint8_t* __restrict__ data, int64_t chunks, const __grid_constant__ Op op) {
    constexpr int per_thread = Op::per_thread;
    const int64_t block_first = int64_t{blockIdx.x} * (chunk_threads * per_thread);
    if (block_first + chunk_threads * per_thread <= chunks)
        run_chunks<per_thread, true>(data, block_first + threadIdx.x, chunks, op);
    else
        run_chunks<per_thread, false>(data, block_first + threadIdx.x, chunks, op);
}

template <class Op>
cudaError_t launch_chunks(const uint8_t* data, int64_t chunks, const Op& op, cudaStream_t stream) {
    if (chunks == 0) return cudaSuccess;
    constexpr int64_t per_block = chunk_threads * Op::per_thread;
    const auto blocks = static_cast<unsigned>((chunks + per_block - 1) / per_block);
    quantize_chunk_kernel<Op, Op::min_blocks><<<blocks, chunk_threads, 0, stream>>>(data, chunks, op);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
