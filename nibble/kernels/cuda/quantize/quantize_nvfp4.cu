// NVFP4 without a search: scales follow from the maxima of the block and the tensor.
#include "kernels/cuda/quantize/chunk_kernel.cuh"
#include "kernels/cuda/quantize/nvfp4_scale.cuh"
#include "kernels/cuda/quantize/quantize_launch.h"

namespace nibble::cuda {
namespace {

// Block: 16, or 32 (two lanes share a scale).
template <class In, class Scale, int Block>
struct Nvfp4Max {
    using Input = In;
    static constexpr int per_thread = usual_per_thread<In>, min_blocks = usual_min_blocks;
    static constexpr bool shared_state = false;
    using State = Scale;

    Nvfp4Args args;
    ScaleStore store;

    __device__ State begin(bool first) const {
        State state(args);
        if (first && args.tensor_scale) *args.tensor_scale = state.tensor_scale;
        return state;
    }
    __device__ void chunk(const State& state, Chunk<In>& w, const uint8_t* at, int64_t index, bool valid) const {
        const float own = w.amax();
        const float amax = Block == 32 ? fmaxf(own, __shfl_xor_sync(0xFFFFFFFFu, own, 1)) : own;
        if (!valid) return;
        const Nvfp4Block block = nvfp4_block(state, w, at, own, amax);
        __stcs(reinterpret_cast<uint2*>(args.codes) + index, block.codes);
        if constexpr (Block == 16)
            store(index, block.scale);
        else if (index % 2 == 0)
            store(index / 2, block.scale);
    }
    __device__ void end(const State&) const {}
};

// Swizzled scales of whole 128-row tiles. A warp processes rows r, r + 1 and those 32, 64, 96 below, four blocks of
// each, so its 32 scales are 32 consecutive bytes (in row order it would write an eighth of every sector). A thread
// block covers 32 rows x 16 blocks; thread k of a row's four reads blocks k, k + 4, k + 8, k + 12.
constexpr int tile_blocks_across = 16;

template <class In>
__global__ void __launch_bounds__(chunk_threads, usual_min_blocks)
    quantize_nvfp4_kernel(const uint8_t* __restrict__ data, int64_t across, const __grid_constant__ Nvfp4Args args) {
    const auto strips = static_cast<uint32_t>(across / tile_blocks_across);
    const uint32_t strip = blockIdx.x % strips, rows8 = blockIdx.x / strips;
    const uint32_t lane = threadIdx.x % 32, low = rows8 % 4 * 8 + threadIdx.x / 32 * 2 + lane / 4 % 2,
                   quarter = lane / 8;
    const int64_t tile_row = rows8 / 4, row = tile_row * 128 + quarter * 32 + low;
    const int64_t first = row * across + strip * tile_blocks_across + lane % 4;
    uint8_t* scales =
        args.target.scales + (tile_row * (across / 4) + strip * 4) * 512 + low * 16 + quarter * 4 + lane % 4;
    Chunk<In> w[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) w[k].load(data + (first + 4 * k) * Chunk<In>::bytes);
    const DynamicScale state(args);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const float amax = w[k].amax();
        const Nvfp4Block block = nvfp4_block(state, w[k], data + (first + 4 * k) * Chunk<In>::bytes, amax, amax);
        __stcs(reinterpret_cast<uint2*>(args.codes) + first + 4 * k, block.codes);
        scales[512 * k] = block.scale;
    }
}

cudaError_t launch_tiles(const Input& in, const Nvfp4Args& args, cudaStream_t stream) {
    const int64_t across = in.cols / chunk;
    const auto blocks = static_cast<unsigned>(in.rows / 32 * (across / tile_blocks_across));
    if (in.f32)
        quantize_nvfp4_kernel<F32><<<blocks, chunk_threads, 0, stream>>>(in.data, across, args);
    else
        quantize_nvfp4_kernel<Bf16><<<blocks, chunk_threads, 0, stream>>>(in.data, across, args);
    return cudaGetLastError();
}

template <class Scale, int Block>
cudaError_t launch(const Input& in, const Nvfp4Args& args, cudaStream_t stream) {
    const ScaleStore store{args.target.scales, static_cast<uint32_t>(in.cols / Block), args.target.swizzled};
    const int64_t chunks = in.elements() / chunk;
    if (in.f32) return launch_chunks(in.data, chunks, Nvfp4Max<F32, Scale, Block>{args, store}, stream);
    return launch_chunks(in.data, chunks, Nvfp4Max<Bf16, Scale, Block>{args, store}, stream);
}

}  // namespace

cudaError_t launch_nvfp4_dynamic(const Input& in, const Nvfp4Args& args, int block, cudaStream_t stream) {
    const bool whole_tiles = in.rows % 128 == 0 && in.cols % (chunk * tile_blocks_across) == 0 && in.elements() > 0;
    if (block == 16 && args.target.swizzled && whole_tiles && !args.tensor_scale) return launch_tiles(in, args, stream);
    return block == 16 ? launch<DynamicScale, 16>(in, args, stream) : launch<DynamicScale, 32>(in, args, stream);
}

cudaError_t launch_nvfp4_static(const Input& in, const Nvfp4Args& args, cudaStream_t stream) {
    return launch<StaticScale, 16>(in, args, stream);
}

}  // namespace nibble::cuda
