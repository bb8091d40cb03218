// The twin of kernels/cuda/product/exact/product.cpp in a build without CUDA.
#include "kernels/product_cuda.h"

namespace nibble::cuda {

namespace {

Error absent() { return fail("this build has no CUDA (configure with -DNIBBLE_CUDA=ON); use --device cpu"); }

}  // namespace

Status prepare_products(const DeviceInfo&) { return absent(); }
int64_t operand_bytes(int64_t, int64_t) { return 0; }
Status make_operand(const MatrixView&, int64_t, int64_t, std::byte*, const Stream&) { return absent(); }
Status make_operand(const QuantView&, int64_t, int64_t, std::byte*, const Stream&) { return absent(); }
bool multiplies_codes() { return false; }
int64_t codes_bytes(int64_t, int64_t) { return 0; }
Status make_codes(const QuantView&, int64_t, int64_t, std::byte*, const Stream&) { return absent(); }
Status product(const ProductInput&, const Operand&, float*, int64_t, bool, const Stream&) { return absent(); }
Status rounded_product(const ProductInput&, const Operand&, std::byte*, int64_t, bool, const Stream&) {
    return absent();
}
bool has_rounded_product(const Operand&, int64_t) { return false; }
Status grouped_product(const ProductInput&, const Experts&, float*, int64_t, bool, const Stream&) { return absent(); }
Result<KernelChoice> describe_product(const Operand&, int64_t) { return absent(); }
Result<KernelChoice> describe_grouped_product(const Experts&, int64_t) { return absent(); }
Status quantize_inputs(const QuantizeInputs&, bool, const Stream&) { return absent(); }

}  // namespace nibble::cuda
