// FP8 with scales derived from a maximum: per tensor, row (weights per output, activations per token), 1 x 128 group,
// 128 x 128 tile.
#include "kernels/cuda/quantize/chunk_kernel.cuh"
#include "kernels/cuda/quantize/fp8_codes.cuh"
#include "kernels/cuda/quantize/quantize_launch.h"

namespace nibble::cuda {
namespace {

// ---- Per tensor ---------------------------------------------------------------------------------------------------

template <class In>
struct Fp8Tensor {
    using Input = In;
    static constexpr int per_thread = usual_per_thread<In>, min_blocks = usual_min_blocks;
    static constexpr bool shared_state = false;
    struct State {
        Divisor by;
    };

    Fp8QuantizeArgs args;
    const uint8_t* tail;  // elements after the last whole chunk
    int tail_count;
    int64_t tail_index;

    __device__ State begin(bool first) const {
        const float scale = fp8_scale(*args.store_amax, args.arithmetic);
        const State state{Divisor(fp8_tensor_divisor(scale, args.arithmetic, args.weights))};
        if (first) {
            if (args.tensor_scale) *args.tensor_scale = scale;
            for (int i = 0; i < tail_count; ++i)
                args.codes[tail_index + i] =
                    fp8_tensor_code(code_source<In>(tail, i, args.weights != DType::bf16), state.by.d, args.weights);
        }
        return state;
    }
    __device__ void chunk(const State& state, Chunk<In>& w, const uint8_t* at, int64_t index, bool valid) const {
        if (!valid) return;
        const float amax = w.amax();
        w.round(args.weights != DType::bf16);
        __stcs(reinterpret_cast<uint4*>(args.codes) + index, fp8_codes<In, true>(w, at, amax, state.by, args.weights));
    }
    __device__ void end(const State&) const {}
};

template <class In>
cudaError_t tensor(const Input& in, const Fp8QuantizeArgs& args, cudaStream_t stream) {
    const int64_t n = in.elements(), chunks = n / chunk;
    const Fp8Tensor<In> op{args, in.data + chunks * Chunk<In>::bytes, static_cast<int>(n % chunk), chunks * chunk};
    if (n == 0) return cudaSuccess;
    constexpr int64_t per_block = chunk_threads * Fp8Tensor<In>::per_thread;
    const auto blocks = static_cast<unsigned>(chunks ? (chunks + per_block - 1) / per_block : 1);  // one for a tail
    quantize_chunk_kernel<Fp8Tensor<In>, Fp8Tensor<In>::min_blocks>
        <<<blocks, chunk_threads, 0, stream>>>(in.data, chunks, op);
    return cudaGetLastError();
}

// ---- 1 x 128 ------------------------------------------------------------------------------------------------------

template <class In>
struct Fp8Groups {
    using Input = In;
    static constexpr int per_thread = usual_per_thread<In>, min_blocks = usual_min_blocks;
    static constexpr bool shared_state = false;
    struct State {};

    Fp8QuantizeArgs args;

    __device__ State begin(bool) const { return {}; }
    __device__ void chunk(const State&, Chunk<In>& w, const uint8_t* at, int64_t index, bool valid) const {
        const float own = w.amax();
        float amax = own;
#pragma unroll
        for (int mask = 1; mask < 8; mask *= 2) amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, mask));
        if (!valid) return;
        const float scale = fp8_scale(amax, args.arithmetic);
        w.round(args.weights != DType::bf16);
        __stcs(reinterpret_cast<uint4*>(args.codes) + index,
               fp8_codes<In, false>(w, at, own, Divisor(scale), args.weights));
        if (index % 8 == 0) args.scales[index / 8] = scale;
    }
    __device__ void end(const State&) const {}
};

// ---- Rows and tiles -----------------------------------------------------------------------------------------------

constexpr int row_threads = 128, tile_threads = 256;

template <int Threads>
__device__ float block_max(float x) {
    __shared__ uint32_t warp[Threads / 32];
    const uint32_t m = __reduce_max_sync(0xFFFFFFFFu, __float_as_uint(x));
    if (threadIdx.x % 32 == 0) warp[threadIdx.x / 32] = m;
    __syncthreads();
    uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < Threads / 32; ++i) all = max(all, warp[i]);
    return __uint_as_float(all);
}

// One block per row. Up to Held chunks per thread stay in registers; the rest is read twice (from L2 the second time).
template <class In, int Held>
__global__ void __launch_bounds__(row_threads)
    quantize_fp8_row_kernel(const uint8_t* __restrict__ data, int64_t chunks, const Fp8QuantizeArgs args) {
    const int64_t row = blockIdx.x;
    const uint8_t* at = data + row * chunks * Chunk<In>::bytes;
    uint4* codes = reinterpret_cast<uint4*>(args.codes) + row * chunks;
    Chunk<In> w[Held];
    float amax = 0.0f;
#pragma unroll
    for (int k = 0; k < Held; ++k) {
        const int64_t i = threadIdx.x + k * row_threads;
        if (i < chunks)
            w[k].load(at + i * Chunk<In>::bytes);
        else
            w[k].clear();
    }
#pragma unroll
    for (int k = 0; k < Held; ++k) amax = fmaxf(amax, w[k].amax());
    for (int64_t i = threadIdx.x + Held * row_threads; i < chunks; i += row_threads) {
        Chunk<In> more;
        more.load(at + i * Chunk<In>::bytes);
        amax = fmaxf(amax, more.amax());
    }
    amax = block_max<row_threads>(amax);
    const float scale = fp8_scale(amax, args.arithmetic);
    if (threadIdx.x == 0) args.scales[row] = scale;
    const Divisor by(scale);
#pragma unroll
    for (int k = 0; k < Held; ++k) {
        const int64_t i = threadIdx.x + k * row_threads;
        if (i >= chunks) continue;
        w[k].round(args.weights != DType::bf16);
        __stcs(codes + i, fp8_codes<In, false>(w[k], at + i * Chunk<In>::bytes, amax, by, args.weights));
    }
    for (int64_t i = threadIdx.x + Held * row_threads; i < chunks; i += row_threads) {
        Chunk<In> more;
        more.load(at + i * Chunk<In>::bytes);
        more.round(args.weights != DType::bf16);
        __stcs(codes + i, fp8_codes<In, false>(more, at + i * Chunk<In>::bytes, amax, by, args.weights));
    }
}

// One block per tile: thread t holds chunk t % 8 of rows t / 8, + 32, + 64, + 96.
template <class In>
__global__ void __launch_bounds__(tile_threads)
    quantize_fp8_128x128_kernel(const uint8_t* __restrict__ data, int64_t rows, int64_t chunks, int64_t tiles_across,
                                const Fp8QuantizeArgs args) {
    const int64_t tile_row = blockIdx.x / tiles_across, tile_col = blockIdx.x % tiles_across;
    const int64_t column = tile_col * 8 + threadIdx.x % 8;
    Chunk<In> w[4];
    float amax = 0.0f;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const int64_t row = tile_row * fp8_tile + threadIdx.x / 8 + 32 * k;
        if (row < rows && column < chunks)
            w[k].load(data + (row * chunks + column) * Chunk<In>::bytes);
        else
            w[k].clear();
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) amax = fmaxf(amax, w[k].amax());
    amax = fmaxf(block_max<tile_threads>(amax), args.store_amax ? *args.store_amax : 0.0f);
    const float scale = fp8_scale(amax, args.arithmetic);
    if (threadIdx.x == 0) args.scales[blockIdx.x] = scale;
    const Divisor by(scale);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const int64_t row = tile_row * fp8_tile + threadIdx.x / 8 + 32 * k;
        if (row >= rows || column >= chunks) continue;
        const int64_t index = row * chunks + column;
        w[k].round(args.weights != DType::bf16);
        __stcs(reinterpret_cast<uint4*>(args.codes) + index,
               fp8_codes<In, false>(w[k], data + index * Chunk<In>::bytes, amax, by, args.weights));
    }
}

template <class In>
cudaError_t rows(const Input& in, const Fp8QuantizeArgs& args, cudaStream_t stream) {
    const int64_t chunks = in.cols / chunk;
    const auto blocks = static_cast<unsigned>(in.rows);
    constexpr int wide = sizeof(Chunk<In>) == 32 ? 1 : 2;  // FP32 rows hold half as many chunks
    if (chunks <= row_threads)
        quantize_fp8_row_kernel<In, 1><<<blocks, row_threads, 0, stream>>>(in.data, chunks, args);
    else if (chunks <= 2 * row_threads)
        quantize_fp8_row_kernel<In, 2><<<blocks, row_threads, 0, stream>>>(in.data, chunks, args);
    else if (chunks <= 4 * row_threads || wide == 2)
        quantize_fp8_row_kernel<In, 4><<<blocks, row_threads, 0, stream>>>(in.data, chunks, args);
    else
        quantize_fp8_row_kernel<In, 8 / wide><<<blocks, row_threads, 0, stream>>>(in.data, chunks, args);
    return cudaGetLastError();
}

}  // namespace

cudaError_t launch_fp8_tensor(const Input& in, const Fp8QuantizeArgs& args, cudaStream_t stream) {
    return in.f32 ? tensor<F32>(in, args, stream) : tensor<Bf16>(in, args, stream);
}

cudaError_t launch_fp8_groups(const Input& in, const Fp8QuantizeArgs& args, cudaStream_t stream) {
    const int64_t chunks = in.elements() / chunk;
    if (in.f32) return launch_chunks(in.data, chunks, Fp8Groups<F32>{args}, stream);
    return launch_chunks(in.data, chunks, Fp8Groups<Bf16>{args}, stream);
}

cudaError_t launch_fp8_rows_plain(const Input& in, const Fp8QuantizeArgs& args, cudaStream_t stream) {
    if (in.elements() == 0) return cudaSuccess;
    return in.f32 ? rows<F32>(in, args, stream) : rows<Bf16>(in, args, stream);
}

cudaError_t launch_fp8_tiles_plain(const Input& in, const Fp8QuantizeArgs& args, cudaStream_t stream) {
    if (in.elements() == 0) return cudaSuccess;
    const int64_t across = (in.cols + fp8_tile - 1) / fp8_tile, down = (in.rows + fp8_tile - 1) / fp8_tile;
    const auto blocks = static_cast<unsigned>(across * down);
    if (in.f32)
        quantize_fp8_128x128_kernel<F32>
            <<<blocks, tile_threads, 0, stream>>>(in.data, in.rows, in.cols / chunk, across, args);
    else
        quantize_fp8_128x128_kernel<Bf16>
            <<<blocks, tile_threads, 0, stream>>>(in.data, in.rows, in.cols / chunk, across, args);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
