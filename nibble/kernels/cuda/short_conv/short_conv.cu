// A short convolution between its products, in the order of kernels/ssm.h.
//
// One thread per channel and run of tokens; it keeps the last products b * v of its channel in registers. Only the
// thread with a segment's first run reads the stored rows, because a run has at least taps - 1 tokens. That thread also
// replaces them.
#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/cuda/short_conv/short_conv_launch.h"

namespace nibble::cuda {
namespace {

constexpr int threads = 128;

// Taps: of the convolution at most; Run: tokens of a run, at least Taps - 1, or 1 if every segment has one token.
template <int Taps, int Run>
__global__ void __launch_bounds__(threads) short_conv_kernel(const __grid_constant__ ShortConvArgs args) {
    start(args.overlap);
    const StateSegment s = args.list[blockIdx.z];
    const int c = static_cast<int>(blockIdx.x * threads + threadIdx.x);
    if (c >= args.width) return;
    const int before = args.taps - 1;
    const auto input = [&](int64_t t, int part) {
        return rounded(args.projected[((s.row + t) * 3 + part) * args.width + c]);
    };
    // Returns b * v at token t >= -before of the segment.
    const auto product = [&](int64_t t) {
        if (t >= 0) return rounded(input(t, 0) * input(t, 2));
        return s.state ? s.state[(before + t) * args.width + c] : 0.0f;
    };
    float weight[Taps];
#pragma unroll
    for (int j = 0; j < Taps; ++j) weight[j] = j < args.taps ? args.weight[int64_t{j} * args.width + c] : 0.0f;
    const float bias = args.bias ? args.bias[c] : 0.0f;
    for (int64_t begin = int64_t{blockIdx.y} * Run; begin < s.rows; begin += int64_t{gridDim.y} * Run) {
        const int64_t end = begin + Run < s.rows ? begin + Run : s.rows;
        float window[Taps];  // products of the tokens t - before ... t
#pragma unroll
        for (int j = 0; j < Taps; ++j) window[j] = j < before ? product(begin - before + j) : 0.0f;
        for (int64_t t = begin; t < end; ++t) {
            const float newest = product(t);
            float acc = bias;
#pragma unroll
            for (int j = 0; j < Taps; ++j)
                if (j < args.taps) acc = fmaf(weight[j], j == before ? newest : window[j], acc);
            args.out[(s.row + t) * args.width + c] = bf16_from_float(input(t, 1) * rounded(acc));
#pragma unroll
            for (int j = 0; j + 1 < Taps; ++j) window[j] = j + 1 == before ? newest : window[j + 1];
        }
        if (begin > 0 || !s.state) continue;
        for (int j = 0; j < before; ++j)  // ascending: each entry is read before it is overwritten
            s.state[int64_t{j} * args.width + c] = product(s.rows - before + j);
    }
}

template <int Taps>
cudaError_t launch(const ShortConvArgs& args, cudaStream_t stream) {
    constexpr int run = Taps <= 4 ? 8 : 16;
    const bool one = args.longest == 1;
    const unsigned channels = ceil_blocks(args.width, threads), runs = ceil_blocks(args.longest, run);
    const dim3 blocks(channels, one ? 1 : runs, static_cast<unsigned>(args.segments));
    return launch_kernel(one ? short_conv_kernel<Taps, 1> : short_conv_kernel<Taps, run>, blocks, threads, 0, args,
                         stream);
}

}  // namespace

cudaError_t launch_short_conv(const ShortConvArgs& args, cudaStream_t stream) {
    return args.taps <= 4 ? launch<4>(args, stream) : launch<16>(args, stream);
}

}  // namespace nibble::cuda
