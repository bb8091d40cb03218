// Rounding and statistics of K, V and Q for an FP8 cache, eight elements per thread.
#include "kernels/cuda/attention/cache_rows_launch.h"
#include "kernels/cuda/primitives/elementwise.cuh"

namespace nibble::cuda {
namespace {

constexpr int cache_threads = 256, each = 8;
constexpr unsigned see_blocks = 32;  // per side of a row

struct Eight {
    float v[each];
    __device__ explicit Eight(const std::byte* from) {
        const uint4 bits = *reinterpret_cast<const uint4*>(from);
        const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            v[2 * i] = bf16_to_float(static_cast<uint16_t>(words[i]));
            v[2 * i + 1] = bf16_to_float(static_cast<uint16_t>(words[i] >> 16));
        }
    }
    __device__ void to(std::byte* out) const {
        *reinterpret_cast<uint4*>(out) = {pair_of(v[0], v[1]), pair_of(v[2], v[3]), pair_of(v[4], v[5]),
                                          pair_of(v[6], v[7])};
    }
};

__device__ int64_t eight_at() { return (int64_t{blockIdx.x} * cache_threads + threadIdx.x) * each; }

__global__ void __launch_bounds__(cache_threads) cache_round_kernel(const __grid_constant__ RoundCache r) {
    const CacheSide& side = r.sides[blockIdx.y];
    const int64_t at = eight_at();
    if (at >= r.tokens * side.width) return;
    const float scale = *side.scale;
    Eight x(side.x + 2 * at);
#pragma unroll
    for (float& v : x.v) v = e4m3_to_float(e4m3_from_float_saturating(v / scale)) * scale;
    x.to(r.out[blockIdx.y] + 2 * at);
}

__global__ void __launch_bounds__(cache_threads) cache_clear_clipped_kernel(const __grid_constant__ ClearClipped c) {
    const CacheSide& side = c.sides[blockIdx.y];
    const int64_t at = eight_at();
    if (at >= c.tokens * side.width) return;
    const float most = e4m3_max * *side.scale;
    const Eight x(side.x + 2 * at);
    bool any = false;
#pragma unroll
    for (const float v : x.v) any = any || fabsf(v) > most;
    if (!any) return;
    std::byte* d = c.d[blockIdx.y] + 2 * (at / side.width * c.stride + at % side.width);
    Eight gradient(d);
#pragma unroll
    for (int i = 0; i < each; ++i)
        if (fabsf(x.v[i]) > most) gradient.v[i] = 0.0f;
    gradient.to(d);
}

__global__ void __launch_bounds__(cache_threads) cache_maxima_kernel(const __grid_constant__ SeeCache s) {
    const CacheSide& side = s.sides[blockIdx.z];
    const int64_t row = blockIdx.y, count = s.row_tokens * side.width;
    const std::byte* from = side.x + 2 * row * count;
    const float limit = side.scale ? e4m3_max * *side.scale : INFINITY;
    float most = 0.0f;
    unsigned above = 0;
    for (int64_t at = eight_at(); at < count; at += int64_t{see_blocks} * cache_threads * each) {
        const Eight x(from + 2 * at);
#pragma unroll
        for (const float v : x.v) most = fmaxf(most, fabsf(v)), above += fabsf(v) > limit;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
        above += __shfl_xor_sync(0xFFFFFFFFu, above, step);
    }
    if (threadIdx.x % 32 != 0) return;
    // Bits of non-negative numbers order like the numbers.
    atomicMax(reinterpret_cast<unsigned*>(s.maxima + row * s.apart + blockIdx.z), __float_as_uint(most));
    if (above > 0)
        atomicAdd(reinterpret_cast<unsigned long long*>(s.clipped + blockIdx.z / 2),
                  static_cast<unsigned long long>(above));
}

dim3 blocks_of_sides(int64_t tokens, int count, const CacheSide* sides) {
    int64_t width = 0;
    for (int i = 0; i < count; ++i) width = sides[i].width > width ? sides[i].width : width;
    return {ceil_blocks(tokens * width, int64_t{cache_threads} * each), static_cast<unsigned>(count), 1};
}

}  // namespace

cudaError_t launch_round_cache(const RoundCache& r, cudaStream_t stream) {
    cache_round_kernel<<<blocks_of_sides(r.tokens, r.count, r.sides), cache_threads, 0, stream>>>(r);
    return cudaGetLastError();
}

cudaError_t launch_clear_clipped(const ClearClipped& c, cudaStream_t stream) {
    cache_clear_clipped_kernel<<<blocks_of_sides(c.tokens, c.count, c.sides), cache_threads, 0, stream>>>(c);
    return cudaGetLastError();
}

cudaError_t launch_see_cache(const SeeCache& s, cudaStream_t stream) {
    cache_maxima_kernel<<<dim3(see_blocks, static_cast<unsigned>(s.rows), static_cast<unsigned>(s.count)),
                          cache_threads, 0, stream>>>(s);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
