// A sum over the threads of a block in a fixed order.
#pragma once

namespace nibble::cuda {

// Returns the sum to all `threads` threads of the block, which must all call it: a tree in each warp, then warps in
// order.
template <int threads>
__device__ double block_sum(double value) {
    __shared__ double of_warp[threads / 32];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    double sum = 0;
    for (const double part : of_warp) sum += part;
    __syncthreads();
    return sum;
}

}  // namespace nibble::cuda
