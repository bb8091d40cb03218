// Rounds a block of numbers to the values of a format in place: the functions of formats/training.h with the parts
// shared by a tensor precomputed.
#pragma once

#include "kernels/cuda/quantize/cast_block.cuh"

namespace nibble::cuda {

// The kernel arguments of a cast.
struct Cast {
    CastArgs a;
    PhiloxRounds draws;  // CastRandom::block()

    explicit Cast(const CastArgs& args)
        : a(args),
          draws(PhiloxStream{.seed = args.random.id | args.random.draw << 32, .role = args.random.draw >> 32}) {}
};

// Returns the products of two pairs of BF16.
__device__ inline uint32_t pair_product(uint32_t a, uint32_t b) {
    const __nv_bfloat162 p =
        __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
    return *reinterpret_cast<const uint32_t*>(&p);
}

// The scale of 16 numbers and their factor before rounding.
struct NvBlock {
    float scale, element;

    __device__ NvBlock(float of_block, NvScale tensor) : scale(of_block) {
        const float divisor = scale * tensor.decode;
        element = divisor == 0.0f ? FLT_MAX : at_most(1 / divisor, FLT_MAX);
    }
};
__device__ inline NvBlock nv_block(float most, NvScale tensor) {
    const float m = tensor.encode * (1.0f / 6.0f);
    return {e4m3_value(e4m3_code(fminf(most * m, FLT_MAX))), tensor};
}

// Search: four over six. Drawn: stochastic rounding.
template <bool Search, bool Drawn>
struct RoundNvfp4 {
    static constexpr int length = 16;
    float number = 0;  // CastValues::scale of the tensor
    NvScale of_all{};

    __device__ explicit RoundNvfp4(const CastArgs& a) {
        if (a.rule.row_scaled) return;
        number = *a.amax;
        of_all = nv_tensor_scale(number, nv_largest(a.rule));
    }
    // Returns the value that pair_of() needs in addition to the numbers.
    __device__ float operator()(const Cast& cast, float (&z)[16], int64_t outer, int64_t group) const {
        const CastArgs& a = cast.a;
        const NvScale tensor = a.rule.row_scaled ? nv_tensor_scale(a.scale[outer], nv_largest(a.rule)) : of_all;
        const float most = largest(z);
        const NvBlock block =
            Search ? NvBlock(e4m3_value(nv_choose_scale(z, most, a.rule, tensor)), tensor) : nv_block(most, tensor);
        if constexpr (!Drawn) {
#pragma unroll
            for (float& v : z) v = e2m1_value(v * block.element) * block.scale;
            return 1.0f;
        }
        const PhiloxBlock bits =
            cast.draws.block((a.random.first_outer + static_cast<uint64_t>(outer)) * a.random.outer_step +
                             (a.random.first_group + static_cast<uint64_t>(group)) * a.random.group_step);
#pragma unroll
        for (int i = 0; i < 16; ++i)
            z[i] = __uint_as_float(e2m1_drawn(z[i] * block.element, e2m1_random(bits.word[i / 4], i % 4)));
        return block.scale * 0x1p26f;
    }
    // `by` has the factors of both blocks. Drawn values are too small by 2^-126 and block scales too large by 2^26;
    // times 2^100 the product is exact.
    __device__ static uint32_t pair(float a, float b, uint32_t by) {
        if constexpr (!Drawn) return pair_of(a, b);
        return pair_product(pair_product(__byte_perm(__float_as_uint(a), __float_as_uint(b), 0x7632) &
                                             (e2m1_drawn_mask | e2m1_drawn_mask >> 16),
                                         0x71807180u),
                            by);
    }
};

struct PairOfValues {
    __device__ static uint32_t pair(float a, float b, uint32_t) { return pair_of(a, b); }
};

// Rounds two numbers to E4M3 or E5M2, clamped to the largest value.
__device__ inline void round_fp8(float& a, float& b, __nv_fp8_interpretation_t kind) {
    const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(__nv_cvt_float2_to_fp8x2({a, b}, __NV_SATFINITE, kind), kind);
    const float2 z = __half22float2(pair);
    a = z.x, b = z.y;
}

struct RoundMx : PairOfValues {
    static constexpr int length = 32;
    float number = 1;

    __device__ explicit RoundMx(const CastArgs&) {}
    __device__ float operator()(const Cast&, float (&z)[32], int64_t, int64_t) const {
        const uint8_t scale = mx_scale_up(largest(z));
        const float up = mx_inverse_scale(scale), down = e8m0_to_float(scale);
#pragma unroll
        for (int i = 0; i < 32; i += 2) {
            z[i] = z[i] * up, z[i + 1] = z[i + 1] * up;
            round_fp8(z[i], z[i + 1], __NV_E4M3);
            z[i] = z[i] * down, z[i + 1] = z[i + 1] * down;
        }
        return 1.0f;
    }
};

struct RoundFp8 : PairOfValues {
    static constexpr int length = 16;
    float scale, number;
    bool e4m3;

    __device__ explicit RoundFp8(const CastArgs& a) : e4m3(a.rule.format == CastFormat::fp8) {
        scale = a.given ? *a.given : fp8_current_scale(*a.amax, e4m3 ? e4m3_max : e5m2_max);
        number = 1 / scale;
    }
    __device__ float operator()(const Cast&, float (&z)[16], int64_t, int64_t) const {
#pragma unroll
        for (int i = 0; i < 16; i += 2) {
            z[i] = z[i] * scale, z[i + 1] = z[i + 1] * scale;
            if (e4m3)
                round_fp8(z[i], z[i + 1], __NV_E4M3);
            else
                round_fp8(z[i], z[i + 1], __NV_E5M2);
        }
        return 1.0f;
    }
};

struct RoundBf16 : PairOfValues {
    static constexpr int length = 16;

    float number = 1;

    __device__ explicit RoundBf16(const CastArgs&) {}
    __device__ float operator()(const Cast&, float (&)[16], int64_t, int64_t) const { return 1.0f; }
};

}  // namespace nibble::cuda
