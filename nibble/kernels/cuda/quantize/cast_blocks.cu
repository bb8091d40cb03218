// Codes with scales per block of 128 along the reduction, or per tile of 128 x 128. A thread block has 128 x 128 of the
// source.
#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/cuda/quantize/cast_launch.h"

namespace nibble::cuda {
namespace {

// Pitch of rows in shared memory, in elements: adjacent elements of a column use different banks.
constexpr int codes_threads = 256, codes_pitch_words = fp8_group / 2 + 1, codes_row = 2 * codes_pitch_words;

template <bool Down>
__global__ void __launch_bounds__(codes_threads) cast_block_codes_kernel(const __grid_constant__ CastArgs a) {
    __shared__ uint32_t words[fp8_group * codes_pitch_words];
    __shared__ float most[fp8_group];
    const auto* tile = reinterpret_cast<const uint16_t*>(words);
    const int64_t outer0 = int64_t{blockIdx.x} / a.groups * fp8_group, group = int64_t{blockIdx.x} % a.groups;
    const int64_t row0 = Down ? group * fp8_group : outer0, col0 = Down ? outer0 : group * fp8_group;
    const auto thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < fp8_group * 16; i += codes_threads) {
        const int row = i / 16, chunk = i % 16;
        uint4 w{};
        if (row0 + row < a.rows && col0 + 8 * chunk < a.cols)
            w = *reinterpret_cast<const uint4*>(a.x + (row0 + row) * a.stride + col0 + 8 * chunk);
        uint32_t* to = words + row * codes_pitch_words + 4 * chunk;
        to[0] = w.x, to[1] = w.y, to[2] = w.z, to[3] = w.w;
    }
    __syncthreads();
    const auto at = [&](int outer, int index) {
        return bf16_to_float(tile[Down ? index * codes_row + outer : outer * codes_row + index]);
    };
    {
        const int outer = Down ? thread % fp8_group : thread / 2, half = Down ? thread / fp8_group : thread % 2;
        float m = 0.0f;
        for (int i = 0; i < fp8_group / 2; ++i) m = fmaxf(m, magnitude(at(outer, half * (fp8_group / 2) + i)));
        if (half == 0) most[outer] = m;
        __syncthreads();
        if (half == 1) most[outer] = fmaxf(most[outer], m);
        __syncthreads();
    }
    float of_tile = 0.0f;
    if (a.rule.square)
        for (int i = 0; i < fp8_group; ++i) of_tile = fmaxf(of_tile, most[i]);
    for (int i = thread; i < fp8_group * 16; i += codes_threads) {
        // Adjacent threads read adjacent shared memory.
        const int outer = Down ? i % fp8_group : i / 16, chunk = Down ? i / fp8_group : i % 16;
        if (outer0 + outer >= a.outer) continue;
        const BlockScale scale = fp8_block_scale(a.rule.square ? of_tile : most[outer], a.rule);
        float z[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) z[e] = e4m3_to_float(scale.code(at(outer, 8 * chunk + e)));
        *reinterpret_cast<uint4*>(a.values + (outer0 + outer) * a.pitch + group * fp8_group + 8 * chunk) = {
            pair_of(z[0], z[1]), pair_of(z[2], z[3]), pair_of(z[4], z[5]), pair_of(z[6], z[7])};
        if (chunk == 0 && !a.rule.square) a.scale[(outer0 + outer) * a.groups + group] = scale.down;
    }
    if (a.rule.square && thread == 0)
        a.scale[outer0 / fp8_group * a.groups + group] = fp8_block_scale(of_tile, a.rule).down;
}

}  // namespace

cudaError_t launch_block_codes(const CastArgs& a, bool down, cudaStream_t stream) {
    const unsigned blocks = ceil_blocks(a.outer, fp8_group) * static_cast<unsigned>(a.groups);
    if (down)
        cast_block_codes_kernel<true><<<blocks, codes_threads, 0, stream>>>(a);
    else
        cast_block_codes_kernel<false><<<blocks, codes_threads, 0, stream>>>(a);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
