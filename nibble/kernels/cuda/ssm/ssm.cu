// Mamba-2 around its scan, in the orders of kernels/ssm.h, one output per thread.
#include "kernels/cuda/primitives/convolution.cuh"
#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/cuda/ssm/ssm_launch.h"
#include "kernels/cuda/ssm/ssm_step.cuh"

namespace nibble::cuda {
namespace {

constexpr int threads = 128;

__device__ Convolution convolution_of(const SsmArgs& args) {
    return {args.projected, args.stride, args.conv_weight, args.conv_bias, args.channels, args.conv};
}

__global__ void __launch_bounds__(threads) mamba_convolve_kernel(const __grid_constant__ SsmArgs args) {
    start(args.overlap);
    const StateSegment s = args.list[blockIdx.z];
    const int c = static_cast<int>(blockIdx.x * threads + threadIdx.x);
    if (c >= args.channels) return;
    const Convolution convolution = convolution_of(args);
    for (int64_t t = blockIdx.y; t < s.rows; t += gridDim.y)
        args.xbc[(s.row + t) * args.channels + c] = bf16_from_float(silu(convolution.sum(s, t, c, args.inner + c)));
}

__global__ void __launch_bounds__(threads)
    mamba_steps_kernel(const __grid_constant__ SsmArgs args, int64_t step_blocks) {
    start(args.overlap);
    if (blockIdx.x < step_blocks) {
        const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
        if (i >= args.tokens * args.heads) return;
        const int64_t token = i / args.heads;
        const int h = static_cast<int>(i % args.heads);
        const float dt = step_size(args, args.projected[token * args.stride + args.inner + args.channels + h], h);
        args.dt[i] = dt;
        args.decay[i] = step_decay(args, dt, h);
        return;
    }
    const int64_t i = (int64_t{blockIdx.x} - step_blocks) * threads + threadIdx.x;
    if (i >= int64_t{args.segments} * args.channels) return;
    const StateSegment s = args.list[i / args.channels];
    const int c = static_cast<int>(i % args.channels);
    convolution_of(args).keep(s, c, args.inner + c);
}

// One thread block per token and group.
__global__ void mamba_gate_kernel(const __grid_constant__ SsmArgs args) {
    extern __shared__ __align__(16) float row[];
    __shared__ float shared_scale;
    start(args.overlap);
    const int64_t token = blockIdx.y;
    const int width = args.inner / args.groups, pitch = lane_pitch(width), at = static_cast<int>(blockIdx.x) * width;
    const auto gate = [&](int j) { return silu(rounded(args.projected[token * args.stride + at + j])); };
    for (int j = static_cast<int>(threadIdx.x); j < width; j += static_cast<int>(blockDim.x)) {
        const float y = args.y[token * args.inner + at + j];
        *lane_place(row, pitch, j) = args.order == SsmNorm::before_gate ? y : gate(j) * y;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        const float scale = norm_scale(row, width, args.eps);
        if (threadIdx.x == 0) shared_scale = scale;
    }
    __syncthreads();
    const float r = shared_scale;
    for (int j = static_cast<int>(threadIdx.x); j < width; j += static_cast<int>(blockDim.x)) {
        float x = *lane_place(row, pitch, j);
        if (args.order != SsmNorm::none) x = (x * r) * args.norm[at + j];
        if (args.order == SsmNorm::before_gate) x = gate(j) * rounded(x);
        args.out[token * args.inner + at + j] = bf16_from_float(x);
    }
}

}  // namespace

cudaError_t launch_convolve(const SsmArgs& args, cudaStream_t stream) {
    const dim3 blocks(ceil_blocks(args.channels, threads),
                      static_cast<unsigned>(args.longest < 1024 ? args.longest : 1024),
                      static_cast<unsigned>(args.segments));
    return launch_kernel(mamba_convolve_kernel, blocks, threads, 0, args, stream);
}

cudaError_t launch_steps(const SsmArgs& args, cudaStream_t stream) {
    const int64_t step_blocks = ceil_blocks(args.tokens * args.heads, threads);
    const auto blocks = static_cast<unsigned>(
        step_blocks + ceil_blocks(args.conv > 1 ? int64_t{args.segments} * args.channels : 0, threads));
    mamba_steps_kernel<<<blocks, threads, 0, stream>>>(args, step_blocks);
    return cudaGetLastError();
}

cudaError_t launch_gate(const SsmArgs& args, cudaStream_t stream) {
    const int width = args.inner / args.groups, bytes = norm_shared_bytes(width);
    if (bytes > 48 * 1024)
        if (const cudaError_t code =
                cudaFuncSetAttribute(mamba_gate_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024))
            return code;
    return launch_kernel(mamba_gate_kernel,
                         dim3(static_cast<unsigned>(args.groups), static_cast<unsigned>(args.tokens)),
                         width >= 1024 ? 256 : 128, bytes, args, stream);
}

}  // namespace nibble::cuda
