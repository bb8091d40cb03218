// The twin of kernels/cuda/sampling/sampling.cpp in a build without CUDA.
#include "kernels/sampling_cuda.h"

namespace nibble::cuda {

Status sample(const Sampling&, bool, const Stream&) {
    return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu");
}

Status carry_tokens(const CarriedToken*, int64_t, const ChosenToken*, int32_t*, const Stream&) {
    return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu");
}

}  // namespace nibble::cuda
