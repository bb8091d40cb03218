// Values of training's operands: a thread has a block of 16 or 32 numbers along the reduction.
#include "formats/nvfp4.h"
#include "kernels/cuda/common/elementwise.cuh"
#include "kernels/cuda/train/cast_launch.h"

namespace nibble::cuda {
namespace {

constexpr int cast_threads = 256;

template <bool Down>
__device__ float source_at(const CastArgs& a, int64_t outer, int64_t index) {
    const int64_t row = Down ? index : outer, col = Down ? outer : index;
    if (row >= a.rows || col >= a.cols) return 0.0f;
    const float x = bf16_to_float(a.x[row * a.stride + col]);
    if (!a.source_scale) return x;
    return round_to_bf16(x * (a.source_scale[a.by_row ? row : 0] * a.factor));
}

template <int L, bool Down>
__device__ void load_block(const CastArgs& a, int64_t outer, int64_t group, float (&z)[L]) {
    if constexpr (!Down) {
        if (!a.source_scale && (group + 1) * L <= a.cols) {
#pragma unroll
            for (int c = 0; c < L / 8; ++c) {
                const uint4 w = *reinterpret_cast<const uint4*>(a.x + outer * a.stride + group * L + 8 * c);
                const uint32_t word[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
                for (int i = 0; i < 8; ++i)
                    z[8 * c + i] = __uint_as_float(i % 2 ? word[i / 2] & 0xFFFF0000u : word[i / 2] << 16);
            }
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < L; ++i) z[i] = source_at<Down>(a, outer, group * L + i);
}

// Fewer than a block is stored where the reduction is not padded.
template <int L, bool Down>
__device__ void store_block(const CastArgs& a, int64_t outer, int64_t group, const float (&z)[L]) {
    if constexpr (Down) {
        const int64_t end = cast_padded(a.rows, a.rule);
#pragma unroll
        for (int i = 0; i < L; ++i)
            if (group * L + i < end) a.values[(group * L + i) * a.pitch + outer] = bf16_from_float(z[i]);
    } else {
#pragma unroll
        for (int c = 0; c < L / 8; ++c) {
            if (group * L + 8 * c >= a.pitch) break;
            const uint4 w{pair_of(z[8 * c], z[8 * c + 1]), pair_of(z[8 * c + 2], z[8 * c + 3]),
                          pair_of(z[8 * c + 4], z[8 * c + 5]), pair_of(z[8 * c + 6], z[8 * c + 7])};
            *reinterpret_cast<uint4*>(a.values + outer * a.pitch + group * L + 8 * c) = w;
        }
    }
}

template <int L>
__device__ float largest(const float (&z)[L]) {
    float m = 0.0f;
#pragma unroll
    for (const float v : z) m = magnitude(v) > m ? magnitude(v) : m;
    return m;
}

__device__ float block_max(float m) {
    __shared__ float of_warp[cast_threads / 32];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, step));
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = m;
    __syncthreads();
    for (unsigned w = 0; w < blockDim.x / 32; ++w) m = fmaxf(m, of_warp[w]);
    return m;
}
// Magnitudes are ordered as their bits; a maximum does not depend on the order.
__device__ void raise(float* amax, float m) {
    m = block_max(m);
    if (threadIdx.x == 0 && m > 0.0f) atomicMax(reinterpret_cast<unsigned*>(amax), __float_as_uint(m));
}

struct Place {
    int64_t outer, group;
    bool present;
};
template <bool Down>
__device__ Place place_of(const CastArgs& a) {
    const int64_t i = int64_t{blockIdx.x} * cast_threads + threadIdx.x;
    return {Down ? i % a.outer : i / a.groups, Down ? i / a.outer : i % a.groups, i < a.outer * a.groups};
}

// The largest magnitude; with Rotate the rotated numbers go to `values`.
template <bool Down, bool Rotate>
__global__ void __launch_bounds__(cast_threads) amax_kernel(const __grid_constant__ CastArgs a) {
    const Place at = place_of<Down>(a);
    float m = 0.0f;
    if (at.present) {
        float z[16];
        load_block<16, Down>(a, at.outer, at.group, z);
        if constexpr (Rotate) {
            hadamard16(z, rotation_signs);
#pragma unroll
            for (float& v : z) v = round_to_bf16(v);
            store_block<16, Down>(a, at.outer, at.group, z);
        }
        m = largest(z);
    }
    raise(a.amax, m);
}

// Of rows with a scale each.
__global__ void __launch_bounds__(cast_threads) row_amax_kernel(const __grid_constant__ CastArgs a) {
    float m = 0.0f;
    for (int64_t g = threadIdx.x; g < a.groups; g += cast_threads) {
        float z[16];
        load_block<16, false>(a, blockIdx.x, g, z);
        m = fmaxf(m, largest(z));
    }
    m = block_max(m);
    if (threadIdx.x == 0) a.scale[blockIdx.x] = m;
}

__device__ void encode16(float (&z)[16], uint8_t scale, NvScale tensor, const PhiloxBlock* random) {
    const float e = nv_element_scale(scale, tensor), s = e4m3_to_float(scale);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const float y = z[i] * e;
        const uint8_t code = random ? e2m1_stochastic_byte(y, static_cast<uint8_t>(random->word[i / 4] >> (i % 4 * 8)))
                                    : e2m1_from_float(y);
        z[i] = e2m1_to_float(code) * s;
    }
}

template <bool Down>
__global__ void __launch_bounds__(cast_threads) nvfp4_values_kernel(const __grid_constant__ CastArgs a) {
    const Place at = place_of<Down>(a);
    if (!at.present) return;
    const float t = a.rule.row_scaled ? a.scale[at.outer] : *a.amax;
    const NvScale tensor = nv_tensor_scale(t, nv_largest(a.rule));
    float z[16];
    load_block<16, Down>(a, at.outer, at.group, z);
    const uint8_t scale = nv_choose_scale(z, largest(z), a.rule, tensor);
    if (a.rule.stochastic) {
        const PhiloxBlock bits = a.random.block(static_cast<uint64_t>(at.outer), static_cast<uint64_t>(at.group));
        encode16(z, scale, tensor, &bits);
    } else {
        encode16(z, scale, tensor, nullptr);
    }
    store_block<16, Down>(a, at.outer, at.group, z);
    if (!a.rule.row_scaled && at.outer == 0 && at.group == 0) *a.scale = t;
}

// Sixteen threads have a tile of 16 x 16.
__global__ void __launch_bounds__(cast_threads) nvfp4_square_kernel(const __grid_constant__ CastArgs a) {
    const int64_t i = int64_t{blockIdx.x} * cast_threads + threadIdx.x, tile = i / 16;
    const int64_t row = tile / a.groups * 16 + i % 16, group = tile % a.groups;
    const bool present = row < a.rows;
    float z[16] = {};
    if (present) load_block<16, false>(a, row, group, z);
    float b = largest(z);
#pragma unroll
    for (int step = 8; step > 0; step /= 2) b = fmaxf(b, __shfl_xor_sync(0xFFFFFFFFu, b, step));
    if (!present) return;
    const NvScale tensor = nv_tensor_scale(*a.amax, nv_largest(a.rule));
    encode16(z, nv_block_scale(b, tensor), tensor, nullptr);
    store_block<16, false>(a, row, group, z);
    if (row == 0 && group == 0) *a.scale = *a.amax;
}

template <bool Down>
__global__ void __launch_bounds__(cast_threads) mx_values_kernel(const __grid_constant__ CastArgs a) {
    const Place at = place_of<Down>(a);
    if (!at.present) return;
    float z[32];
    load_block<32, Down>(a, at.outer, at.group, z);
    const uint8_t scale = mx_scale_up(largest(z));
    const float up = mx_inverse_scale(scale), down = e8m0_to_float(scale);
#pragma unroll
    for (float& v : z) v = e4m3_rounded(v * up) * down;
    store_block<32, Down>(a, at.outer, at.group, z);
}

template <bool Down>
__global__ void __launch_bounds__(cast_threads) fp8_values_kernel(const __grid_constant__ CastArgs a) {
    const Place at = place_of<Down>(a);
    if (!at.present) return;
    const bool e4m3 = a.rule.format == CastFormat::fp8;
    const float scale = a.given ? *a.given : fp8_current_scale(*a.amax, e4m3 ? e4m3_max : e5m2_max);
    float z[16];
    load_block<16, Down>(a, at.outer, at.group, z);
#pragma unroll
    for (float& v : z) v = e4m3 ? e4m3_rounded(v * scale) : e5m2_rounded(v * scale);
    store_block<16, Down>(a, at.outer, at.group, z);
    if (at.outer == 0 && at.group == 0) {
        *a.scale = 1 / scale;
        if (a.seen) *a.seen = fmaxf(*a.seen, *a.amax);
    }
}

template <bool Down>
__global__ void __launch_bounds__(cast_threads) bf16_values_kernel(const __grid_constant__ CastArgs a) {
    const Place at = place_of<Down>(a);
    if (!at.present) return;
    float z[16];
    load_block<16, Down>(a, at.outer, at.group, z);
    store_block<16, Down>(a, at.outer, at.group, z);
    if (at.outer == 0 && at.group == 0) *a.scale = 1;
}

template <bool Down>
cudaError_t cast(CastArgs a, cudaStream_t stream) {
    const auto blocks = [&](int64_t length) { return ceil_blocks(a.outer * length, cast_threads); };
    if (a.rule.format == CastFormat::mxfp8) {
        mx_values_kernel<Down><<<blocks(a.groups), cast_threads, 0, stream>>>(a);
        return cudaGetLastError();
    }
    if (a.rule.row_scaled) {
        row_amax_kernel<<<static_cast<unsigned>(a.rows), cast_threads, 0, stream>>>(a);
    } else {
        if (const cudaError_t code = cudaMemsetAsync(a.amax, 0, sizeof(float), stream)) return code;
        if (a.rule.rotate) {
            amax_kernel<Down, true><<<blocks(a.groups), cast_threads, 0, stream>>>(a);
            a.x = a.values, a.stride = a.pitch, a.source_scale = nullptr;
            (Down ? a.rows : a.cols) = 16 * a.groups;
        } else {
            amax_kernel<Down, false><<<blocks(a.groups), cast_threads, 0, stream>>>(a);
        }
    }
    switch (a.rule.format) {
        case CastFormat::nvfp4:
            if (a.rule.square)
                nvfp4_square_kernel<<<ceil_blocks((a.rows + 15) / 16 * 16 * a.groups, cast_threads), cast_threads, 0,
                                      stream>>>(a);
            else
                nvfp4_values_kernel<Down><<<blocks(a.groups), cast_threads, 0, stream>>>(a);
            break;
        case CastFormat::fp8:
        case CastFormat::fp8_e5m2:
            fp8_values_kernel<Down><<<blocks(a.groups), cast_threads, 0, stream>>>(a);
            break;
        default:
            bf16_values_kernel<Down><<<blocks(a.groups), cast_threads, 0, stream>>>(a);
    }
    return cudaGetLastError();
}

// ---- MS-EDEN: a thread has 128 numbers along the reduction, in shared memory
// -----------------------------------------

constexpr int eden_threads = 64, eden_apart = eden_threads + 1;

template <bool Down>
__device__ void eden_load(const CastArgs& a, int64_t first, int64_t group, float* z) {
    if constexpr (Down) {
        for (int i = 0; i < eden_group; ++i) {
            const int64_t row = group * eden_group + i, col = first + threadIdx.x;
            float x = 0.0f;
            if (row < a.rows && col < a.cols) {
                x = bf16_to_float(a.x[row * a.stride + col]);
                if (a.source_scale) x = x * (a.source_scale[a.by_row ? row : 0] * a.factor);
            }
            z[i * eden_apart + threadIdx.x] = x;
        }
    } else {
        for (int v = 0; v < eden_threads; ++v)
            for (int i = static_cast<int>(threadIdx.x); i < eden_group; i += eden_threads) {
                const int64_t row = first + v, col = group * eden_group + i;
                float x = 0.0f;
                if (row < a.rows && col < a.cols) {
                    x = bf16_to_float(a.x[row * a.stride + col]);
                    if (a.source_scale) x = x * (a.source_scale[a.by_row ? row : 0] * a.factor);
                }
                z[i * eden_apart + v] = x;
            }
    }
    __syncthreads();
}

template <bool Down>
__device__ void eden_store(const CastArgs& a, int64_t first, int64_t group, const float* z) {
    __syncthreads();
    if constexpr (Down) {
        if (first + threadIdx.x >= a.outer) return;
        for (int i = 0; i < eden_group; ++i)
            a.values[(group * eden_group + i) * a.pitch + first + threadIdx.x] =
                bf16_from_float(z[i * eden_apart + threadIdx.x]);
    } else {
        for (int v = 0; v < eden_threads && first + v < a.outer; ++v)
            for (int i = static_cast<int>(threadIdx.x); i < eden_group; i += eden_threads)
                a.values[(first + v) * a.pitch + group * eden_group + i] = bf16_from_float(z[i * eden_apart + v]);
    }
}

template <bool Down>
__global__ void __launch_bounds__(eden_threads) eden_rotate_kernel(const __grid_constant__ CastArgs a) {
    __shared__ float z[eden_group * eden_apart];
    __shared__ float sign[eden_group];
    const int64_t first = int64_t{blockIdx.x} * eden_threads, group = blockIdx.y;
    for (int i = static_cast<int>(threadIdx.x); i < eden_group; i += eden_threads)
        sign[i] =
            a.signs.block(a.first_sign + static_cast<uint64_t>(group * eden_group + i), 0).word[0] & 1 ? -1.0f : 1.0f;
    eden_load<Down>(a, first, group, z);
    float* own = z + threadIdx.x;
    for (int i = 0; i < eden_group; ++i) own[i * eden_apart] = own[i * eden_apart] * sign[i];
    hadamard128(own, eden_apart);
    float m = 0.0f;
    for (int i = 0; i < eden_group; ++i) {
        const float v = eden_rotated(own[i * eden_apart]);
        own[i * eden_apart] = v;
        m = magnitude(v) > m ? magnitude(v) : m;
    }
    eden_store<Down>(a, first, group, z);
    raise(a.amax, m);
}

template <bool Down>
__global__ void __launch_bounds__(eden_threads) eden_encode_kernel(const __grid_constant__ CastArgs a) {
    __shared__ float z[eden_group * eden_apart];
    const int64_t first = int64_t{blockIdx.x} * eden_threads, group = blockIdx.y;
    const float d = eden_scale(*a.amax);
    eden_load<Down>(a, first, group, z);
    if (first + threadIdx.x < a.outer)
        eden_encode(z + threadIdx.x, eden_apart, d, a.random, static_cast<uint64_t>(first + threadIdx.x),
                    static_cast<uint64_t>(group));
    eden_store<Down>(a, first, group, z);
    if (first == 0 && group == 0 && threadIdx.x == 0) *a.scale = d;
}

template <bool Down>
cudaError_t eden(CastArgs a, cudaStream_t stream) {
    if (const cudaError_t code = cudaMemsetAsync(a.amax, 0, sizeof(float), stream)) return code;
    const dim3 blocks(ceil_blocks(a.outer, eden_threads), static_cast<unsigned>(a.groups));
    eden_rotate_kernel<Down><<<blocks, eden_threads, 0, stream>>>(a);
    a.x = a.values, a.stride = a.pitch, a.source_scale = nullptr;
    (Down ? a.rows : a.cols) = eden_group * a.groups;
    eden_encode_kernel<Down><<<blocks, eden_threads, 0, stream>>>(a);
    return cudaGetLastError();
}

__global__ void product_scales_kernel(const float* a, bool by_row, const float* b, float constant, float* out,
                                      int64_t count) {
    const int64_t i = int64_t{blockIdx.x} * cast_threads + threadIdx.x;
    if (i < count) out[i] = a[by_row ? i : 0] * b[0] * constant;
}

__device__ void eight_numbers(const uint16_t* x, float (&z)[8]) {
    const uint4 w = *reinterpret_cast<const uint4*>(x);
    const uint32_t word[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) z[i] = __uint_as_float(i % 2 ? word[i / 2] & 0xFFFF0000u : word[i / 2] << 16);
}

__global__ void __launch_bounds__(cast_threads) see_largest_kernel(const uint16_t* x, int64_t groups, float* seen) {
    float m = 0.0f;
    for (int64_t g = int64_t{blockIdx.x} * cast_threads + threadIdx.x; g < groups;
         g += int64_t{gridDim.x} * cast_threads) {
        float z[8];
        eight_numbers(x + 8 * g, z);
        m = fmaxf(m, largest(z));
    }
    raise(seen, m);
}

__global__ void __launch_bounds__(cast_threads)
    clear_clipped_kernel(const uint16_t* x, int64_t groups, const float* input_scale, uint16_t* dx) {
    const float most = e2m1_max * nvfp4_decode_scale(e4m3_from_float(e4m3_max), *input_scale);
    for (int64_t g = int64_t{blockIdx.x} * cast_threads + threadIdx.x; g < groups;
         g += int64_t{gridDim.x} * cast_threads) {
        float z[8];
        eight_numbers(x + 8 * g, z);
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (magnitude(z[i]) > most) dx[8 * g + i] = 0;
    }
}

// A thread block for each scale.
__global__ void __launch_bounds__(cast_threads) renew_scales_kernel(DelayedScales d, const float* clip) {
    float seen = d.seen[blockIdx.x];
    for (int64_t s = 0; s < d.sets; ++s) seen = fmaxf(seen, d.others[s * d.apart + blockIdx.x]);
    if (d.held) {
        const float held = d.held[blockIdx.x];
        __syncthreads();
        const bool lost = isnan(*clip);
        if (!lost) seen = fmaxf(seen, held);
        if (threadIdx.x == 0) d.held[blockIdx.x] = !d.hold ? 0.0f : lost ? held : seen;
        if (d.hold) return;
    }
    if (isnan(*clip)) return;
    if (seen == 0) {
        if (threadIdx.x == 0 && d.stored && d.scales[blockIdx.x] == 0) d.scales[blockIdx.x] = 1.0f;
        return;
    }
    float* const history = d.histories + int64_t{blockIdx.x} * d.history;
    float most = seen;
    for (int64_t i = 1 + threadIdx.x; i < d.history; i += cast_threads) most = fmaxf(most, history[i]);
    most = block_max(most);
    // One step up, in pieces that are read whole before they are written.
    for (int64_t i = 0; i + 1 < d.history; i += cast_threads) {
        const int64_t at = i + threadIdx.x;
        const float next = at + 1 < d.history ? history[at + 1] : 0.0f;
        __syncthreads();
        if (at + 1 < d.history) history[at] = next;
        __syncthreads();
    }
    if (threadIdx.x > 0) return;
    if (d.history > 1) history[d.history - 1] = seen;
    history[0] = 0.0f;
    d.seen[blockIdx.x] = 0.0f;
    if (!is_finite(most) || !(most > 0)) return;
    const float scale = d.stored ? fmaxf(most / d.largest, FLT_MIN) : d.largest / most;
    d.scales[blockIdx.x] = is_finite(scale) ? scale : FLT_MAX;
}

}  // namespace

cudaError_t launch_cast(const CastArgs& a, bool down, cudaStream_t stream) {
    return down ? cast<true>(a, stream) : cast<false>(a, stream);
}
cudaError_t launch_eden(const CastArgs& a, bool down, cudaStream_t stream) {
    return down ? eden<true>(a, stream) : eden<false>(a, stream);
}
cudaError_t launch_product_scales(const float* a, bool by_row, const float* b, float constant, float* out,
                                  int64_t count, cudaStream_t stream) {
    product_scales_kernel<<<ceil_blocks(count, cast_threads), cast_threads, 0, stream>>>(a, by_row, b, constant, out,
                                                                                         count);
    return cudaGetLastError();
}
cudaError_t launch_see_largest(const uint16_t* x, int64_t count, float* seen, cudaStream_t stream) {
    see_largest_kernel<<<std::min(ceil_blocks(count / 8, cast_threads), 1024u), cast_threads, 0, stream>>>(x, count / 8,
                                                                                                           seen);
    return cudaGetLastError();
}
cudaError_t launch_clear_clipped(const uint16_t* x, int64_t count, const float* input_scale, uint16_t* dx,
                                 cudaStream_t stream) {
    clear_clipped_kernel<<<std::min(ceil_blocks(count / 8, cast_threads), 1024u), cast_threads, 0, stream>>>(
        x, count / 8, input_scale, dx);
    return cudaGetLastError();
}
cudaError_t launch_renew_scales(const DelayedScales& d, const float* clip, cudaStream_t stream) {
    renew_scales_kernel<<<static_cast<unsigned>(d.count), cast_threads, 0, stream>>>(d, clip);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
