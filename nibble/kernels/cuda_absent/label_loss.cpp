// The twin of kernels/cuda/loss/label_loss_drawn.cpp in a build without CUDA.
#include "kernels/label_loss_cuda.h"

namespace nibble::cuda {

namespace {

Error absent() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

Status prepare_drawn_labels(const DeviceInfo&) { return absent(); }
Status drawn_label_loss(const LabelLoss&, const Drawn&, const Stream&) { return absent(); }

}  // namespace nibble::cuda
