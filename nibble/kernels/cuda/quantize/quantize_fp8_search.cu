// FP8 rows and tiles of any width, and their searches. Losses are sums of doubles in the order of kernels/ref (sixteen
// lanes by column, a halving tree, rows one after the other), so the same multiplier wins. Also the losses of
// per-tensor searches. Sixteen threads are the sixteen lanes. A search runs once per model, so exactness matters more
// than speed.
#include "formats/fp8.h"
#include "formats/nvfp4.h"
#include "kernels/cuda/primitives/block16.cuh"
#include "kernels/cuda/quantize/quantize_launch.h"

#include <cuda_runtime.h>

namespace nibble::cuda {
namespace {

constexpr int lanes = 16, threads = 256, groups = threads / lanes;
constexpr int batch = 16;  // multipliers at a time

template <class In>
__device__ float element(const uint8_t* data, int64_t index) {
    if constexpr (sizeof(Chunk<In>) == 32)
        return bf16_to_float(reinterpret_cast<const uint16_t*>(data)[index]);
    else
        return reinterpret_cast<const float*>(data)[index];
}

// Halving tree over sixteen adjacent threads; every thread gets the total.
__device__ double tree16(double x, unsigned mask) {
#pragma unroll
    for (int half = 8; half > 0; half /= 2) x += __shfl_xor_sync(mask, x, half);
    return x;
}

__device__ unsigned group_mask() { return threadIdx.x % 32 < 16 ? 0x0000FFFFu : 0xFFFF0000u; }

__device__ double squared(float x) { return double{x} * double{x}; }

// Returns the squared error of fp8_fake_value over `cols` elements from `index`, one thread per lane.
template <class In>
__device__ double fp8_row_loss(const uint8_t* data, int64_t index, int64_t cols, float amax) {
    double sum = 0;
    for (int64_t j = threadIdx.x % lanes; j < cols; j += lanes) {
        const float x = element<In>(data, index + j);
        sum += squared(x - fp8_fake_value(x, amax));
    }
    return tree16(sum, group_mask());
}

// One block per region: a row (tile = 1 x cols) or a tile.
template <class In>
__global__ void __launch_bounds__(threads)
    search_fp8_region_kernel(const uint8_t* __restrict__ data, int64_t rows, int64_t cols, int64_t tile_rows,
                             int64_t tile_cols, int64_t tiles_across, const Fp8QuantizeArgs args,
                             const __grid_constant__ Multipliers multipliers) {
    __shared__ uint32_t shared_amax;
    __shared__ double totals[batch][fp8_tile];  // by multiplier and row
    __shared__ double losses[batch];
    const int64_t row0 = blockIdx.x / tiles_across * tile_rows, col0 = blockIdx.x % tiles_across * tile_cols;
    const int64_t height = min(tile_rows, rows - row0), width = min(tile_cols, cols - col0);
    if (threadIdx.x == 0) shared_amax = 0;
    __syncthreads();
    uint32_t m = 0;
    for (int64_t i = threadIdx.x; i < height * width; i += threads)
        m = max(m, __float_as_uint(element<In>(data, (row0 + i / width) * cols + col0 + i % width)) & 0x7FFFFFFFu);
    atomicMax(&shared_amax, m);
    __syncthreads();
    float amax = fmaxf(__uint_as_float(shared_amax), args.store_amax ? *args.store_amax : 0.0f);

    if (multipliers.count > 0) {
        float best = 1.0f;
        double least = 0;
        for (int base = 0; base < multipliers.count; base += batch) {
            const int count = min(batch, multipliers.count - base);
            for (int64_t job = threadIdx.x / lanes; job < height * count; job += groups) {
                const int64_t row = job / count;
                const int c = static_cast<int>(job % count);
                const double loss =
                    fp8_row_loss<In>(data, (row0 + row) * cols + col0, width, amax * multipliers.value[base + c]);
                if (threadIdx.x % lanes == 0) totals[c][row] = loss;
            }
            __syncthreads();
            if (threadIdx.x < count) {
                double sum = 0;
                for (int64_t row = 0; row < height; ++row) sum += totals[threadIdx.x][row];
                losses[threadIdx.x] = sum;
            }
            __syncthreads();
            for (int c = 0; c < count; ++c)
                if (base + c == 0 || losses[c] < least) best = multipliers.value[base + c], least = losses[c];
            __syncthreads();
        }
        amax *= best;
        if (threadIdx.x == 0 && best > 1.0f && args.raised) atomicAdd(args.raised, 1ull);
    }
    const float scale = fp8_scale(amax, args.arithmetic);
    if (threadIdx.x == 0) args.scales[blockIdx.x] = scale;
    for (int64_t i = threadIdx.x; i < height * width; i += threads) {
        const int64_t index = (row0 + i / width) * cols + col0 + i % width;
        const float x = element<In>(data, index);
        args.codes[index] = fp8_code(args.weights == DType::bf16 ? round_to_bf16(x) : x, scale);
    }
}

cudaError_t regions(const Input& in, int64_t tile_rows, int64_t tile_cols, const Fp8QuantizeArgs& args,
                    const Multipliers& multipliers, cudaStream_t stream) {
    if (in.elements() == 0) return cudaSuccess;
    const int64_t across = (in.cols + tile_cols - 1) / tile_cols, down = (in.rows + tile_rows - 1) / tile_rows;
    const auto blocks = static_cast<unsigned>(across * down);
    if (in.f32)
        search_fp8_region_kernel<F32><<<blocks, threads, 0, stream>>>(in.data, in.rows, in.cols, tile_rows, tile_cols,
                                                                      across, args, multipliers);
    else
        search_fp8_region_kernel<Bf16><<<blocks, threads, 0, stream>>>(in.data, in.rows, in.cols, tile_rows, tile_cols,
                                                                       across, args, multipliers);
    return cudaGetLastError();
}

// ---- Losses of per-tensor searches --------------------------------------------------------------------------------

// scratch[row][c]: sixteen threads per (row, multiplier).
template <class In, bool Fp8>
__global__ void __launch_bounds__(threads)
    search_row_loss_kernel(const uint8_t* __restrict__ data, int64_t rows, int64_t cols, const float* search_amax,
                           const __grid_constant__ Multipliers multipliers, Arithmetic arithmetic, double* scratch) {
    const int64_t job = int64_t{blockIdx.x} * groups + threadIdx.x / lanes;
    if (job >= rows * multipliers.count) return;
    const float g = *search_amax * multipliers.value[job % multipliers.count];
    const int64_t index = job / multipliers.count * cols;
    double total = 0;
    if constexpr (Fp8) {
        total = fp8_row_loss<In>(data, index, cols, g);
    } else {
        for (int64_t j = threadIdx.x % lanes; j < cols; j += lanes) {  // the sixteen lanes hold one block
            const float x = element<In>(data, index + j);
            float amax = magnitude(x);
#pragma unroll
            for (int half = 8; half > 0; half /= 2) amax = fmaxf(amax, __shfl_xor_sync(group_mask(), amax, half));
            total += squared(x - nvfp4_fake_value(x, nvfp4_fake_dynamic_scale(amax, g, arithmetic)));
        }
        total = tree16(total, group_mask());
    }
    if (threadIdx.x % lanes == 0) scratch[job] = total;
}

// Adds rows in order, one thread per multiplier.
__global__ void search_add_losses_kernel(const double* __restrict__ scratch, int64_t rows, int count, double* losses) {
    const int c = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (c >= count) return;
    double sum = losses[c];
#pragma unroll 8
    for (int64_t row = 0; row < rows; ++row) sum += scratch[row * count + c];
    losses[c] = sum;
}

}  // namespace

cudaError_t launch_fp8_rows(const Input& in, const Fp8QuantizeArgs& args, const Multipliers& multipliers,
                            cudaStream_t stream) {
    if (multipliers.count == 0 && in.cols % chunk == 0) return launch_fp8_rows_plain(in, args, stream);
    return regions(in, 1, in.cols, args, multipliers, stream);
}

cudaError_t launch_fp8_tiles(const Input& in, const Fp8QuantizeArgs& args, const Multipliers& multipliers,
                             cudaStream_t stream) {
    if (multipliers.count == 0 && in.cols % chunk == 0) return launch_fp8_tiles_plain(in, args, stream);
    return regions(in, fp8_tile, fp8_tile, args, multipliers, stream);
}

cudaError_t launch_tensor_losses(const Input& in, bool fp8, const float* search_amax, const Multipliers& multipliers,
                                 Arithmetic arithmetic, double* scratch, double* losses, cudaStream_t stream) {
    const int64_t jobs = in.rows * multipliers.count;
    if (jobs == 0 || in.cols == 0) return cudaSuccess;
    const auto blocks = static_cast<unsigned>((jobs + groups - 1) / groups);
    const auto launch = [&](auto kernel) {
        kernel<<<blocks, threads, 0, stream>>>(in.data, in.rows, in.cols, search_amax, multipliers, arithmetic,
                                               scratch);
    };
    if (in.f32)
        fp8 ? launch(search_row_loss_kernel<F32, true>) : launch(search_row_loss_kernel<F32, false>);
    else
        fp8 ? launch(search_row_loss_kernel<Bf16, true>) : launch(search_row_loss_kernel<Bf16, false>);
    if (const cudaError_t code = cudaGetLastError(); code != cudaSuccess) return code;
    search_add_losses_kernel<<<(multipliers.count + 31) / 32, 32, 0, stream>>>(scratch, in.rows, multipliers.count,
                                                                               losses);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
