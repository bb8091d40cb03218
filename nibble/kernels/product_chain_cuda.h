// One token through products that follow each other, in one kernel: attention's projection, gate and up with their
// activation, down, the next layer's q, k and v, with the norms between them.
//
// Between two kernels the memory is idle: the last sums, the end of one, the start of the next, its first weights, the
// wait. Here one thread block a multiprocessor stays for all of them. A warp asks for weights, which depend on nothing,
// as far ahead as shared memory reaches; the others multiply, and make the next product's input out of each other's
// outputs, as soon as they see them, while its weights arrive.
//
// Its thread blocks wait for each other, so all of them must be on the GPU at once: on a device one such kernel at a
// time, in one stream. (Two of them, each with some of the multiprocessors, would wait for ever.)
//
// W8A8 per tensor or row, input scales stored (Hopper), or W4A16 with records. The bits of add_norm(),
// quantize_inputs(), product() or matmul(), activate() and rope_append(), one after the other. Pointers are device
// pointers, 16-byte aligned (vectors of floats and `meet`: 8). chain_products() queues work and returns at once.
// kernels/cuda_absent/ implements this header in a build without CUDA.
#pragma once

#include "kernels/elementwise_cuda.h"
#include "kernels/matmul_cuda.h"
#include "kernels/product_cuda.h"
#include "tensor/device.h"

#include <span>

namespace nibble::cuda {

struct ChainedProduct {
    // All products of a chain have the one, or all the other.
    Operand w;              // codes, without tile scales; cols a multiple of 128
    float input_scale = 1;  // of its input's codes
    PackedMatrix packed;    // cols a multiple of 256; gated: tiles of gate and up by turns (MatmulProblem::gated)
    MatmulFactors factors;  // of `packed`: scales and bias
    // Its input is one of: these rows,
    const std::byte* x = nullptr;  // [cols] BF16
    // the norm of h, to which the output of the product before (of the first: ProductChain::update) is added first,
    const float* norm = nullptr;   // [cols]
    int32_t* nonfinite = nullptr;  // becomes 0 where that sum holds a NaN or an infinity; may be null
    // or what the product before made with its activation.
    bool activated = false;  // its output goes through ProductChain::activation, and has no other use
    bool gated = false;      // the rows are those of a gate, then (of `packed`: by turns) those of what it gates
    float* y = nullptr;      // [rows] FP32, unless activated; may be null where the next product takes it
};

struct ProductChain {
    std::span<const ChainedProduct> products;  // most_chained at most
    const std::byte* h = nullptr;              // BF16
    const float* update = nullptr;             // null: none is pending
    std::byte* h_out = nullptr;                // not h; the last sum, where one was made; may be null
    float eps = 0;
    Activation activation = Activation::silu;
    // Where products hand their outputs on: product_chain_bytes(), all bits set before the first call, and what the
    // call before had in its place (product_chain_bytes() of that), which is set back; not the same.
    std::byte* between = nullptr;
    std::byte* used = nullptr;  // may be null
    int64_t used_bytes = 0;
    // What becomes of the last product's y, which then may not be written: rope_append(), of one token. Null: nothing.
    const RopeAppend* rope = nullptr;
    const KvCache* cache = nullptr;
    // Where all thread blocks meet before a rotary embedding that needs more of a head than one of them has: one word,
    // zero before the first use; kernels of one stream share it.
    uint64_t* meet = nullptr;
};
inline constexpr int most_chained = 4;

// Whether there is a kernel for it: shapes and formats, no pointer is read.
bool takes_product_chain(const ProductChain& chain, const DeviceInfo& device);
int64_t product_chain_bytes(const ProductChain& chain);
Status chain_products(const ProductChain& chain, bool overlap, const DeviceInfo& device, const Stream& stream);

}  // namespace nibble::cuda
