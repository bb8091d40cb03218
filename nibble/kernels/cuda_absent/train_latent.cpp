// The twin of kernels/cuda/attention/latent_backward.cpp in a build without CUDA.
#include "kernels/train_latent_cuda.h"

namespace nibble::cuda {

namespace {

Error no_latent_training() {
    return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu");
}

}  // namespace

Status latent_rows(const LatentShape&, const LatentRows&, const Stream&) { return no_latent_training(); }
Status latent_backward(const LatentShape&, const LatentBackward&, const Stream&) { return no_latent_training(); }
Status latent_join(const LatentJoin&, const Stream&) { return no_latent_training(); }

}  // namespace nibble::cuda
