// NVFP4 for training: an optional 16-point Hadamard rotation of every block, then dynamic scales with nearest or
// stochastic rounding. Straight from formats/: the random numbers (two Philox blocks per sixteen elements) and the
// rotation outweigh the division.
#include "formats/stochastic.h"
#include "kernels/cuda/chunk_kernel.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/nvfp4_scale.cuh"

namespace nibble::cuda {
namespace {

template <class In, bool Rotate, bool Stochastic>
struct Nvfp4Training {
    using Input = In;
    using State = DynamicScale;
    static constexpr int per_thread = 2, min_blocks = 6;
    static constexpr bool shared_state = false;

    Nvfp4Args args;
    ScaleStore store;
    Training training;

    __device__ State begin(bool) const { return State(args); }

    __device__ void chunk(const State& state, Chunk<In>& chunk, const uint8_t*, int64_t index, bool valid) const {
        if (!valid) return;
        float w[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) w[i] = chunk.value(i);
        if constexpr (Rotate) hadamard16(w, training.signs);
        float amax = 0.0f;
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            amax = fmaxf(amax, fabsf(w[i]));
            if constexpr (!Rotate) w[i] = round_to_bf16(w[i]);
        }
        const uint8_t scale = state.exact(amax);
        const float decode_scale = nvfp4_decode_scale(scale, state.tensor_scale);
        uint32_t half[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            PhiloxBlock random{};
            if constexpr (Stochastic) random = training.stream.block(static_cast<uint64_t>(index) * 2 + h);
            half[h] = 0;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float x = w[8 * h + i];
                const uint32_t bits = random.word[i / 2] >> (i % 2 * 16) & 0xFFFFu;
                const uint32_t code =
                    Stochastic ? nvfp4_code_stochastic(x, decode_scale, bits) : nvfp4_code(x, decode_scale);
                half[h] |= code << (4 * i);
            }
        }
        __stcs(reinterpret_cast<uint2*>(args.codes) + index, make_uint2(half[0], half[1]));
        store(index, scale);
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
