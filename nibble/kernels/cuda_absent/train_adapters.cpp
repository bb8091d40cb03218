// The twin of kernels/cuda/lora/adapters.cpp in a build without CUDA.
#include "kernels/train_adapters_cuda.h"

namespace nibble::cuda {
namespace {

Error no_adapters() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

Status add_scaled_rows(float*, int64_t, const float*, float, int64_t, int64_t, const Stream&) { return no_adapters(); }
Status spread_blocks(const AdapterBlocks&, const std::byte*, std::byte*, const Stream&) { return no_adapters(); }
Status gather_blocks(const AdapterBlocks&, const float*, float, float*, const Stream&) { return no_adapters(); }

}  // namespace nibble::cuda
