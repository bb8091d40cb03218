// NVFP4 for training: an optional 16-point Hadamard rotation of every block, then dynamic scales with nearest or
// stochastic rounding. The shared reciprocal gives correctly rounded quotients. Blocks outside its range, or that are
// not finite, use the functions of formats/ element by element.
#include "formats/stochastic.h"
#include "kernels/cuda/primitives/philox_rounds.cuh"
#include "kernels/cuda/quantize/chunk_kernel.cuh"
#include "kernels/cuda/quantize/nvfp4_scale.cuh"
#include "kernels/cuda/quantize/quantize_launch.h"

#include <type_traits>

namespace nibble::cuda {
namespace {

// Uses the functions of formats/ directly: reads the block again and stays small.
template <class In, bool Rotate, bool Stochastic>
__device__ __noinline__ Nvfp4Block exact_training_block(const uint8_t* at, int64_t index, float tensor_scale,
                                                        const Training& training) {
    float w[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) w[i] = element_at<In>(at, i);
    if constexpr (Rotate) hadamard16(w, training.signs);
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; ++i) amax = fmaxf(amax, fabsf(w[i]));
    Nvfp4Block block{{0, 0}, nvfp4_dynamic_scale(amax, tensor_scale)};
    const float decode_scale = nvfp4_decode_scale(block.scale, tensor_scale);
    uint64_t packed = 0;
#pragma unroll
    for (int i = 15; i >= 0; --i) {
        const float x = Rotate ? w[i] : round_to_bf16(w[i]);
        const uint32_t code =
            Stochastic ? nvfp4_code_stochastic(x, decode_scale, training.stream.bits16(uint64_t(index) * 16 + i))
                       : nvfp4_code(x, decode_scale);
        packed = packed << 4 | code;
    }
    block.codes = {static_cast<uint32_t>(packed), static_cast<uint32_t>(packed >> 32)};
    return block;
}

// Returns the larger number, or NaN if either is NaN.
__device__ inline float max_or_nan(float a, float b) {
    float m;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
}

// Returns the top bytes of four words, the first lowest.
__device__ inline uint32_t top_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    return __byte_perm(__byte_perm(a, b, 0x0073), __byte_perm(c, d, 0x0073), 0x5410);
}

// Returns the sign bits of eight numbers as bit 3 of each nibble.
__device__ inline uint32_t sign_bits(const float* x) {
    const auto bits = [x](int i) { return __float_as_uint(x[i]); };
    return ((top_bytes(bits(0), bits(2), bits(4), bits(6)) >> 4) & 0x08080808u) |
           (top_bytes(bits(1), bits(3), bits(5), bits(7)) & 0x80808080u);
}

// Returns eight magnitude codes of |q| <= 6.5, rounded up with a probability equal to the distance from the lower
// neighbour, like e2m1_magnitude_stochastic. Bits 22 and up of m = max(1 + |q|, 2 |q|) hold the code plus a constant,
// the bits below the fraction of the step. 1 + |q| is rounded up, which does not change comparisons with multiples of
// 2^-17. Four times those bits minus 256 random + 1 borrows from the top byte unless the fraction exceeds the random
// number.
__device__ inline uint32_t stochastic_pack8(const float* q, const PhiloxBlock& random) {
    uint32_t t[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float m = __fadd_ru(fabsf(q[i]), fmaxf(fabsf(q[i]), 1.0f));
        // 253: initial value of the top byte, minus the borrow.
        t[i] = 4u * __float_as_uint(m) - __byte_perm(random.word[i / 2], 0x0000FD01u, i % 2 ? 0x5324 : 0x5104);
    }
    const uint32_t packed = top_bytes(t[0], t[2], t[4], t[6]) + 16u * top_bytes(t[1], t[3], t[5], t[7]);
    return packed - (packed >> 3 & 0x11111111u);  // above 6: 8 becomes 7
}

template <class In, bool Rotate, bool Stochastic>
struct Nvfp4Training {
    using Input = In;
    using State = DynamicScale;
    static constexpr int per_thread = 2, min_blocks = 6;
    static constexpr bool shared_state = false;
    static constexpr bool is_bf16 = std::is_same_v<In, Bf16>;
    // Rotated BF16 leaves the factor 1/4 to the divisor. This is exact: such sums are multiples of 2^-133.
    static constexpr float folded = Rotate && is_bf16 ? 0.25f : 1.0f;
    // Up to this block scale no quotient of a nonzero element rounds to zero, so its sign is the element's (sums of
    // BF16 are multiples of 2^-133, of rotated FP32 multiples of 2^-149).
    static constexpr float most_scale = !Rotate ? safe_divisor_max : is_bf16 ? 8192.0f : 1.0f;

    Nvfp4Args args;
    ScaleStore store;
    Training training;
    PhiloxRounds random;
    uint32_t sign_pair[8];  // +-1 of the rotation's diagonal in BF16

    Nvfp4Training(const Nvfp4Args& a, const ScaleStore& s, const Training& t)
        : args(a), store(s), training(t), random(t.stream) {
        for (int i = 0; i < 8; ++i)
            sign_pair[i] = 0x3F803F80u | (t.signs >> (2 * i) & 1u) << 15 | (t.signs >> (2 * i + 1) & 1u) << 31;
    }

    __device__ State begin(bool) const { return State(args); }

    // Returns the elements to encode, times 1 / folded. Rotated elements have no -0: a sum of +0 is never -0.
    __device__ float values(Chunk<In>& chunk, float (&w)[16]) const {
        float amax = 0.0f;
        if constexpr (is_bf16) {
            auto* x = reinterpret_cast<__nv_bfloat162*>(chunk.pair);
            if constexpr (Rotate) {
                const __nv_bfloat162 zero = __float2bfloat162_rn(0.0f);
#pragma unroll
                for (int i = 0; i < 8; ++i)
                    x[i] = __hfma2(x[i], *reinterpret_cast<const __nv_bfloat162*>(&sign_pair[i]), zero);
            } else {
                __nv_bfloat162 m = __habs2(x[0]);
#pragma unroll
                for (int i = 1; i < 8; ++i) m = __hmax2_nan(m, __habs2(x[i]));
                amax = __bfloat162float(__hmax_nan(m.x, m.y));
            }
        }
        if constexpr (!is_bf16 && !Rotate) amax = __uint_as_float(chunk.amax_bits());
        if constexpr (!Rotate) chunk.round(false);
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            w[i] = chunk.value(i);
            if constexpr (Rotate && !is_bf16) w[i] = (training.signs >> i & 1u ? -w[i] : w[i]) + 0.0f;
        }
        if constexpr (Rotate) {
            hadamard16_sums(w);
            if constexpr (!is_bf16) {
#pragma unroll
                for (float& v : w) v = v * 0.25f + 0.0f;
            }
#pragma unroll
            for (int i = 0; i < 16; ++i) amax = max_or_nan(amax, fabsf(w[i]));
            amax *= folded;
        }
        return amax;
    }

    __device__ void chunk(const State& state, Chunk<In>& chunk, const uint8_t* at, int64_t index, bool valid) const {
        if (!valid) return;
        float w[16];
        const float amax = values(chunk, w);
        Nvfp4Block block;
        block.scale = amax == 0.0f ? 0x38 : state.fast(amax);
        const float decode_scale = e4m3_value(block.scale) * state.tensor_scale;
        const bool usual = state.safe && (amax >= tiny_amax || amax == 0.0f) && decode_scale <= most_scale;
        if (usual && amax <= 6.5f * decode_scale) {
            const Divisor by(decode_scale * (1.0f / folded));
            uint32_t half[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float q[8];
#pragma unroll
                for (int i = 0; i < 8; ++i) q[i] = by.quotient(Stochastic ? w[8 * h + i] : fabsf(w[8 * h + i]));
                if constexpr (Stochastic)
                    half[h] = stochastic_pack8(q, random.block(static_cast<uint64_t>(index) * 2 + h));
                else
                    half[h] = e2m1_pack8([&](int i) { return q[i]; });
                half[h] |= Rotate ? sign_bits(w + 8 * h) : chunk.negative_nibbles(h);
            }
            block.codes = {half[0], half[1]};
        } else {
            block = exact_training_block<In, Rotate, Stochastic>(at, index, state.tensor_scale, training);
        }
        __stcs(reinterpret_cast<uint2*>(args.codes) + index, block.codes);
        store(index, block.scale);
    }
    __device__ void end(const State&) const {}
};

template <class In>
cudaError_t launch(const Input& in, const Nvfp4Args& args, const Training& training, cudaStream_t stream) {
    const ScaleStore store{args.target.scales, static_cast<uint32_t>(in.cols / chunk), args.target.swizzled};
    const int64_t chunks = in.elements() / chunk;
    if (training.rotate && training.stochastic)
        return launch_chunks(in.data, chunks, Nvfp4Training<In, true, true>{args, store, training}, stream);
    if (training.rotate)
        return launch_chunks(in.data, chunks, Nvfp4Training<In, true, false>{args, store, training}, stream);
    return launch_chunks(in.data, chunks, Nvfp4Training<In, false, true>{args, store, training}, stream);
}

}  // namespace

cudaError_t launch_nvfp4_training(const Input& in, const Nvfp4Args& args, const Training& training,
                                  cudaStream_t stream) {
    if (!training.rotate && !training.stochastic) return launch_nvfp4_dynamic(in, args, 16, stream);
    return in.f32 ? launch<F32>(in, args, training, stream) : launch<Bf16>(in, args, training, stream);
}

}  // namespace nibble::cuda
