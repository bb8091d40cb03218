// Rows of BF16, eight elements at a time, and exponentials without branches, for kernels over many rows.
#pragma once

#include "kernels/cuda/primitives/elementwise.cuh"

namespace nibble::cuda {

__device__ inline void unpack8(const uint4& w, float (&x)[8]) {
    const uint32_t word[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = __uint_as_float(i % 2 ? word[i / 2] & 0xFFFF0000u : word[i / 2] << 16);
}
__device__ inline void unpack8(const std::byte* from, float (&x)[8]) {
    unpack8(*reinterpret_cast<const uint4*>(from), x);
}

__device__ inline void pack8(std::byte* to, const float (&x)[8]) {
    *reinterpret_cast<uint4*>(to) = {pair_of(x[0], x[1]), pair_of(x[2], x[3]), pair_of(x[4], x[5]),
                                     pair_of(x[6], x[7])};
}

// The bits of exp_of() for numbers; undefined for NaN. Below: only for x <= 0. Selections are inline assembly, because
// the compiler turns ?: into branches here.
template <bool Below = false>
__device__ inline float exp_of_number(float x) {
    constexpr float t0 = exp_terms[0], t1 = exp_terms[1], t2 = exp_terms[2], t3 = exp_terms[3], t4 = exp_terms[4],
                    t5 = exp_terms[5];
    const float shifted = fmaf(x, exp_log2e, exp_round), n = shifted - exp_round;
    const float r = fmaf(-n, exp_ln2_low, fmaf(-n, exp_ln2_high, x));
    const float p = fmaf(fmaf(fmaf(fmaf(fmaf(t0, r, t1), r, t2), r, t3), r, t4), r, t5);
    const float y = fmaf(p, r * r, r) + 1.0f;
    float e = __uint_as_float(__float_as_uint(y) + (__float_as_uint(shifted) << 23));
    asm("{\n\t.reg .pred below;\n\tsetp.lt.f32 below, %1, %2;\n\tselp.f32 %0, 0f00000000, %0, below;\n\t}"
        : "+f"(e)
        : "f"(x), "f"(exp_lowest));
    if constexpr (!Below)
        asm("{\n\t.reg .pred above;\n\tsetp.gt.f32 above, %1, %2;\n\tselp.f32 %0, 0f7F800000, %0, above;\n\t}"
            : "+f"(e)
            : "f"(x), "f"(exp_highest));
    return e;
}

// act() of elementwise.cuh with the same bits except for payloads of NaN.
__device__ inline float act_of(int activation, float x) {
    constexpr float c0 = 1.5957691216f, c1 = 0.0713548162726f;
    if (activation == 0) return x / (1.0f + exp_of_number(-x));
    if (activation == 1) return x / (1.0f + exp_of_number(-(x * fmaf(c1, x * x, c0))));
    return x > 0.0f || x != x ? x * x : 0.0f;
}

}  // namespace nibble::cuda
