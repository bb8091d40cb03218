#include "kernels/short_conv_cuda.h"

#include "kernels/cuda/primitives/launch_checks.h"
#include "kernels/cuda/short_conv/short_conv_launch.h"

namespace nibble::cuda {
namespace {

constexpr int64_t most_conv_tokens = 65535, most_conv_width = int64_t{1} << 20;

}  // namespace

Status short_conv_step(const ShortConvStep& s, bool overlap, const Stream& stream) {
    if (s.width < 1 || s.width > most_conv_width || s.taps < 1 || s.taps > 16)
        return fail("short convolution: {} channels, {} taps; up to {} and 16 are supported", s.width, s.taps,
                    most_conv_width);
    if (s.tokens < 1 || s.tokens > most_conv_tokens || s.segments < 1 || s.segments > most_conv_tokens || s.longest < 1)
        return fail("short convolution: {} tokens in {} segments", s.tokens, s.segments);
    return cuda_status(launch_short_conv({.width = static_cast<int>(s.width),
                                          .taps = s.taps,
                                          .segments = s.segments,
                                          .longest = s.longest,
                                          .list = s.list,
                                          .projected = s.projected,
                                          .weight = s.weight,
                                          .bias = s.bias,
                                          .out = reinterpret_cast<uint16_t*>(s.out),
                                          .overlap = overlap},
                                         queue_of(stream)),
                       "short convolution: kernel launch");
}

}  // namespace nibble::cuda
