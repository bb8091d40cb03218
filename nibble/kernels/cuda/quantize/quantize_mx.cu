// MXFP4 and MXFP8: blocks of 32, two lanes each.
#include "formats/mx.h"
#include "kernels/cuda/quantize/chunk_kernel.cuh"
#include "kernels/cuda/quantize/nvfp4_scale.cuh"
#include "kernels/cuda/quantize/quantize_launch.h"

namespace nibble::cuda {
namespace {

template <class In>
__device__ __noinline__ uint2 exact_mxfp4_codes(const uint8_t* at, float inverse, bool kept) {
    uint64_t packed = 0;
#pragma unroll 1
    for (int i = 15; i >= 0; --i) packed = packed << 4 | mxfp4_code(code_source<In>(at, i, kept), inverse);
    return {static_cast<uint32_t>(packed), static_cast<uint32_t>(packed >> 32)};
}

template <class In, MxRule R>
struct Mx {
    using Input = In;
    static constexpr int per_thread = usual_per_thread<In>, min_blocks = usual_min_blocks;
    static constexpr bool shared_state = false;
    struct State {};

    uint8_t* codes;
    ScaleStore store;
    bool kept;

    __device__ State begin(bool) const { return {}; }
    __device__ void chunk(const State&, Chunk<In>& w, const uint8_t* at, int64_t index, bool valid) const {
        const float own = w.amax();
        const float amax = fmaxf(own, __shfl_xor_sync(0xFFFFFFFFu, own, 1));
        if (!valid) return;
        const uint8_t scale = R == MxRule::mxfp4          ? mxfp4_scale(amax)
                              : R == MxRule::mxfp4_inputs ? mxfp4_input_scale(amax)
                                                          : mxfp8_scale(amax);
        const float inverse = mx_inverse_scale(scale);
        w.round(kept);
        if constexpr (R == MxRule::mxfp4_inputs) {
            uint32_t half[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {  // quotients are below 7, or 7 if rounding to BF16 went up
                half[h] = e2m1_pack8([&](int i) { return fminf(w.magnitude(8 * h + i) * inverse, e2m1_max); });
#pragma unroll
                for (int i = 0; i < 8; ++i)  // the sign of the quotient: if it underflows to -0 there is none
                    half[h] |= (w.value(8 * h + i) * inverse < 0.0f ? 8u : 0u) << (4 * i);
            }
            __stcs(reinterpret_cast<uint2*>(codes) + index, uint2{half[0], half[1]});
        } else if constexpr (R == MxRule::mxfp4) {
            uint2 packed;
            if (scale <= 127 + 16 && !(is_f32<In> && kept)) {
                // BF16 times a power of two has eight significant bits: reduced by 2^-20, a tie goes down and nothing
                // else changes.
                const float shrunk = inverse * (1.0f - 0x1p-20f);
                packed.x = e2m1_pack8([&](int i) { return w.magnitude(i) * shrunk; }) | w.not_positive_nibbles(0);
                packed.y = e2m1_pack8([&](int i) { return w.magnitude(8 + i) * shrunk; }) | w.not_positive_nibbles(1);
            } else {  // FP32 has ties' neighbours; a small positive element may vanish in the product, and then its
                      // sign is set
                packed = exact_mxfp4_codes<In>(at, inverse, is_f32<In> && kept);
            }
            __stcs(reinterpret_cast<uint2*>(codes) + index, packed);
        } else {
            uint32_t packed[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                packed[i] = e4m3_pack4(w.value(4 * i) * inverse, w.value(4 * i + 1) * inverse,
                                       w.value(4 * i + 2) * inverse, w.value(4 * i + 3) * inverse);
            __stcs(reinterpret_cast<uint4*>(codes) + index, make_uint4(packed[0], packed[1], packed[2], packed[3]));
        }
        if (index % 2 == 0) store(index / 2, scale);
    }
    __device__ void end(const State&) const {}
};

template <MxRule R>
cudaError_t launch(const Input& in, uint8_t* codes, const ScaleTarget& target, cudaStream_t stream) {
    const ScaleStore store{target.scales, static_cast<uint32_t>(in.cols / mx_block), target.swizzled};
    const int64_t chunks = in.elements() / chunk;
    if (in.f32) return launch_chunks(in.data, chunks, Mx<F32, R>{codes, store, in.kept}, stream);
    return launch_chunks(in.data, chunks, Mx<Bf16, R>{codes, store, false}, stream);
}

}  // namespace

cudaError_t launch_mx(const Input& in, MxRule rule, uint8_t* codes, const ScaleTarget& target, cudaStream_t stream) {
    switch (rule) {
        case MxRule::mxfp4:
            return launch<MxRule::mxfp4>(in, codes, target, stream);
        case MxRule::mxfp4_inputs:
            return launch<MxRule::mxfp4_inputs>(in, codes, target, stream);
        case MxRule::mxfp8:
            return launch<MxRule::mxfp8>(in, codes, target, stream);
    }
    return cudaErrorInvalidValue;
}

}  // namespace nibble::cuda
