// Shared by kernels between products; element by element the same operations as kernels/ref.
#pragma once

#include "base/activation.h"
#include "formats/minifloat.h"
#include "kernels/cuda/primitives/ptx.cuh"
#include "kernels/exp.h"
#include "kernels/soft_cap.h"

namespace nibble::cuda {

// Rounds two numbers to BF16, the second in the upper half, in one instruction. Equal to bf16_from_float() except for
// payloads of NaN. bf16_from_float() takes six instructions, which dominated the work between products in tiles of
// attention.
__device__ inline uint32_t pair_of(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
__device__ inline float rounded(float x) { return __uint_as_float(pair_of(0.0f, x)); }

// exp_f32 of kernels/exp.h; constant arrays do not exist on the device.
__device__ inline float exp_of(float x) {
    constexpr float t0 = exp_terms[0], t1 = exp_terms[1], t2 = exp_terms[2], t3 = exp_terms[3], t4 = exp_terms[4],
                    t5 = exp_terms[5];
    if (x != x) return x;
    if (x < exp_lowest) return 0.0f;
    if (x > exp_highest) return INFINITY;
    const float shifted = fmaf(x, exp_log2e, exp_round), n = shifted - exp_round;
    const float r = fmaf(-n, exp_ln2_low, fmaf(-n, exp_ln2_high, x));
    const float p = fmaf(fmaf(fmaf(fmaf(fmaf(t0, r, t1), r, t2), r, t3), r, t4), r, t5);
    const float y = fmaf(p, r * r, r) + 1.0f;
    const uint32_t exponent = __float_as_uint(shifted) - float_bits(exp_round);
    return __uint_as_float(__float_as_uint(y) + (exponent << 23));
}

__device__ inline float silu(float x) { return x / (1.0f + exp_of(-x)); }

// Applies nibble::Activation.
__device__ inline float act(int activation, float x) {
    constexpr float c0 = 1.5957691216f, c1 = 0.0713548162726f;
    if (activation == 0) return silu(x);
    if (activation == 1) return x / (1.0f + exp_of(-(x * fmaf(c1, x * x, c0))));
    return x > 0.0f || x != x ? x * x : 0.0f;
}

// ElementwiseKernels::clamped_glu of one element, not rounded.
__device__ inline float clamped_unit(const ClampedGlu& glu, float x, float up) {
    const auto at_most = [&](float v) { return glu.limit < v ? glu.limit : v; };  // NaN stays NaN
    const float h = glu.activation_first ? x : at_most(x);
    float a = h / (1.0f + exp_of(-glu.alpha * h));
    if (glu.activation_first) a = at_most(a);
    const float bounded = at_most(up);
    return a * ((bounded < -glu.limit ? -glu.limit : bounded) + glu.up_offset);
}

// The bits of soft_cap_f32().
__device__ inline float soft_cap_of(float x, float cap) {
    constexpr float t0 = tanh_terms[0], t1 = tanh_terms[1], t2 = tanh_terms[2], t3 = tanh_terms[3], t4 = tanh_terms[4];
    const float z = x / cap, a = fabsf(z);
    if (!(a < 0.625f)) return cap * copysignf(1.0f - 2.0f / (exp_of(a + a) + 1.0f), z);
    const float z2 = z * z, p = fmaf(fmaf(fmaf(fmaf(t0, z2, t1), z2, t2), z2, t3), z2, t4);
    return cap * fmaf(p * z2, z, z);
}

// The factor of a query at a position (AttentionConfig::query_beta).
__device__ inline float query_factor(float beta, int64_t period, int64_t offset, int position) {
    const auto steps = static_cast<double>((position + offset) / period);
    return static_cast<float>(1.0 + double{beta} * log1p(steps));
}

// Position of eight elements of a row that are written as 16 bytes. Row-major: columns 8 i ... 8 i + 7. Permuted (see
// w4a16_permute_kernel of sm90_matmul_w4a16_m32.cu): the pairs q, 8 + q, 16 + q, 24 + q of 64 columns.
struct Chunk8 {
    int column[4];   // column of each pair
    int64_t offset;  // in bytes

    __device__ Chunk8(int i, int64_t token, int width, int tile) {
        if (tile == 0) {
            for (int p = 0; p < 4; ++p) column[p] = 8 * i + 2 * p;
            offset = (token * width + 8 * i) * 2;
        } else {
            const int block = i / 8, q = i % 8, t = static_cast<int>(token % tile);
            for (int p = 0; p < 4; ++p) column[p] = 64 * block + 2 * q + 16 * p;
            offset = (((token / tile * (width / 64) + block) * tile + t) * 8 + (q ^ t % 8)) * 16;
        }
    }
};

__device__ inline void start(bool overlap) {
    if (overlap) {
        overlap_next();
        wait_for_previous();
    }
}

// Returns a key that is larger for larger values and, among equal ones, for smaller indices.
__device__ inline unsigned long long key_of(float value, uint32_t index) {
    const uint32_t bits = __float_as_uint(value == 0.0f ? 0.0f : value);
    const uint32_t order = value != value ? 0xFFFFFFFFu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return static_cast<unsigned long long>(order) << 32 | ~index;
}

// Configures as much of a multiprocessor's fast memory as possible as shared memory, for all kernels of a decoding
// step. A multiprocessor changes this division only when it is idle, so kernels with different divisions cannot
// overlap.
template <class... Args>
cudaError_t prefer_shared_memory(void (*kernel)(Args...)) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

// The same, and allows a thread block up to `bytes` of shared memory.
template <class... Args>
cudaError_t allow_shared_memory(void (*kernel)(Args...), int64_t bytes) {
    if (const cudaError_t code =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)))
        return code;
    return prefer_shared_memory(kernel);
}

// Args::overlap: uses programmatic dependent launch. cluster: thread blocks of a cluster, along the first dimension.
template <class Args>
cudaError_t launch_kernel(void (*kernel)(Args), dim3 blocks, int threads, int shared_bytes, const Args& args,
                          cudaStream_t stream, int cluster = 1) {
    cudaLaunchAttribute attributes[2] = {};
    unsigned count = 0;
    if (cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count++].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    }
    if (args.overlap) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = blocks;
    config.blockDim = static_cast<unsigned>(threads);
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    return cudaLaunchKernelEx(&config, kernel, args);
}

inline unsigned ceil_blocks(int64_t items, int64_t each) { return static_cast<unsigned>((items + each - 1) / each); }

// The order of a row's sum of squares: lane l of 16 adds elements l, l + 16, l + 32 ..., then a halving tree.
inline constexpr int sum_lanes = 16;
// Floats between the elements of adjacent lanes in shared memory: lanes read 16 aligned bytes each from different
// banks.
__host__ __device__ constexpr int lane_pitch(int width) {
    return ((width + sum_lanes - 1) / sum_lanes + 3) / 4 * 4 + 4;
}
__host__ __device__ constexpr int norm_shared_bytes(int width) { return sum_lanes * lane_pitch(width) * 4; }
__device__ inline float* lane_place(float* row, int pitch, int j) {
    return row + j % sum_lanes * pitch + j / sum_lanes;
}
// Return the mean, and 1 / sqrt(mean of squares + eps), of the row stored at lane_place(). Centered: squares of the
// differences from `mean`. Called by all lanes of a warp.
__device__ inline float row_mean(const float* row, int width) {
    const int lane = static_cast<int>(threadIdx.x) % sum_lanes, count = (width - lane + sum_lanes - 1) / sum_lanes;
    const float* own = row + lane * lane_pitch(width);
    float sum = 0.0f;
    for (int j = 0; j < count; ++j) sum += own[j];
#pragma unroll
    for (int half = sum_lanes / 2; half > 0; half /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, half);
    return sum / static_cast<float>(width);
}
template <bool Centered = false>
__device__ inline float norm_scale(const float* row, int width, float eps, float mean = 0.0f) {
    const auto add = [&](float v, float sum) {
        const float d = Centered ? v - mean : v;
        return fmaf(d, d, sum);
    };
    const int lane = static_cast<int>(threadIdx.x) % sum_lanes, count = (width - lane + sum_lanes - 1) / sum_lanes;
    const float* own = row + lane * lane_pitch(width);
    float sum = 0.0f;
    int j = 0;
#pragma unroll 8
    for (; j + 4 <= count; j += 4) {
        const float4 v = *reinterpret_cast<const float4*>(own + j);
        sum = add(v.y, add(v.x, sum));
        sum = add(v.w, add(v.z, sum));
    }
    for (; j < count; ++j) sum = add(own[j], sum);
#pragma unroll
    for (int half = sum_lanes / 2; half > 0; half /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, half);
    return 1.0f / sqrtf(sum / static_cast<float>(width) + eps);
}

}  // namespace nibble::cuda
