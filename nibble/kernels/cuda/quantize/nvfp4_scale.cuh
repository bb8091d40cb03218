// NVFP4 block scales and codes, with all values shared by a tensor computed once per thread. Equal to formats/nvfp4.h
// bit for bit: if the shared reciprocals could round differently, those functions are called.
#pragma once

#include "formats/nvfp4.h"
#include "formats/swizzle.h"
#include "kernels/cuda/primitives/block16.cuh"
#include "kernels/cuda/quantize/quantize_launch.h"

namespace nibble::cuda {

// Block maxima below this, including zero, use the plain path: a residual could be subnormal.
inline constexpr float tiny_amax = 1e-30f;

// Returns true if every product with an E4M3 scale is a safe divisor.
__device__ inline bool safe_factor(float scale) { return scale >= 1e-15f && scale <= 128.0f; }

struct DynamicScale {
    float tensor_scale;
    Divisor by;  // 6 * tensor_scale
    bool safe, kept;

    __device__ explicit DynamicScale(const Nvfp4Args& args)
        : tensor_scale(args.given_scale ? *args.given_scale
                                        : nvfp4_tensor_scale(*args.store_amax, args.normalization, args.arithmetic)),
          by(e2m1_max * tensor_scale),
          safe(safe_factor(tensor_scale)),
          kept(args.kept) {}

    __device__ uint8_t exact(float amax) const { return nvfp4_dynamic_scale(amax, tensor_scale); }
    // Precondition: safe and amax >= tiny_amax.
    __device__ uint8_t fast(float amax) const { return e4m3_code(fmaxf(by.quotient(amax), 0.001953125f)); }
};

struct StaticScale {
    float tensor_scale, g, normalization;
    Arithmetic arithmetic;
    Divisor by;  // g / 6
    bool safe, kept;

    __device__ explicit StaticScale(const Nvfp4Args& args)
        : tensor_scale(nvfp4_tensor_scale(*args.store_amax, args.normalization, args.arithmetic)),
          g(*args.store_amax),
          normalization(args.normalization),
          arithmetic(args.arithmetic),
          by(div_const(g, e2m1_max, arithmetic)),
          safe(safe_factor(tensor_scale) && safe_divisor(by.d)),
          kept(args.kept) {}

    __device__ uint8_t exact(float amax) const { return nvfp4_static_scale(amax, g, normalization, arithmetic); }
    __device__ uint8_t fast(float amax) const {
        return e4m3_code(fmaxf(by.quotient(div_const(amax, e2m1_max, arithmetic) * normalization), 0.001953125f));
    }
};

struct Nvfp4Block {
    uint2 codes;
    uint8_t scale;
};

// Encodes sixteen elements with the functions of formats/. It reads them again and stays small, so that the fast path
// keeps its registers.
template <class In>
__device__ __noinline__ uint2 exact_nvfp4_codes(const uint8_t* at, float decode_scale, bool kept) {
    uint64_t packed = 0;
#pragma unroll 1
    for (int i = 15; i >= 0; --i) packed = packed << 4 | nvfp4_code(code_source<In>(at, i, kept), decode_scale);
    return {static_cast<uint32_t>(packed), static_cast<uint32_t>(packed >> 32)};
}

// Codes for a safe tensor scale; `amax` is the largest magnitude of the chunk before rounding. Blocks whose quotients
// may exceed 7 (a clamped or subnormal scale) use the plain path.
template <class In>
__device__ uint2 nvfp4_codes(const Chunk<In>& w, const uint8_t* at, float amax, float decode_scale, bool kept) {
    if (!(amax <= 6.5f * decode_scale)) return exact_nvfp4_codes<In>(at, decode_scale, is_f32<In> && kept);
    const Divisor by(decode_scale);
    uint32_t half[2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
        half[h] = e2m1_pack8([&](int i) { return by.quotient(w.magnitude(8 * h + i)); }) |
                  w.negative_nibbles(h, decode_scale);
    return {half[0], half[1]};
}

// Scale and codes of a chunk from the maximum that determines its scale.
template <class In, class Scale>
__device__ Nvfp4Block nvfp4_block(const Scale& scales, Chunk<In>& w, const uint8_t* at, float chunk_amax,
                                  float scale_amax) {
    w.round(scales.kept);
    if (!scales.safe || scale_amax < tiny_amax) {
        const uint8_t scale = scales.exact(scale_amax);
        const float decode_scale = nvfp4_decode_scale(scale, scales.tensor_scale);
        return {chunk_amax == 0.0f ? uint2{0, 0} : exact_nvfp4_codes<In>(at, decode_scale, is_f32<In> && scales.kept),
                scale};
    }
    const uint8_t scale = scales.fast(scale_amax);
    return {nvfp4_codes(w, at, chunk_amax, e4m3_value(scale) * scales.tensor_scale, scales.kept), scale};
}

// Row-major or swizzled offset of the scale of block `index` of a matrix with `blocks_across` blocks per row.
struct ScaleStore {
    uint8_t* scales;
    uint32_t blocks_across;
    bool swizzled;

    __device__ void operator()(int64_t index, uint8_t scale) const {
        if (swizzled) {
            const int64_t row =
                index < (int64_t{1} << 32) ? static_cast<uint32_t>(index) / blocks_across : index / blocks_across;
            scales[swizzled_scale_offset(row, index - row * blocks_across, blocks_across)] = scale;
        } else {
            scales[index] = scale;
        }
    }
};

}  // namespace nibble::cuda
