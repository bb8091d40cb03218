// One token through dependent matrix-vector products in one persistent kernel. For a Llama layer: o_proj of attention,
// RMSNorm, gate and up with their activation, down, RMSNorm, q/k/v of the next layer, rotary embedding and the append
// to the KV cache. Attention itself is the kernel between two such kernels.
//
// Why: one token is bound by reading weights, and separate kernels leave memory idle at every boundary (last sums,
// launch, latency of the first weights). Here one thread block per multiprocessor stays for all products. One warp
// prefetches weights, which depend on no other product, into a ring buffer as far ahead as shared memory reaches. The
// other warps multiply, and build the next product's input from the outputs of all thread blocks.
//
// Hand-over: outputs go through `between`, memory that holds a sentinel (all bits set) until a value is written.
// Readers poll the values themselves, so no grid barrier stands between two products.
//
// Constraint: thread blocks wait for each other, so all of them must be resident at once. Run one such kernel at a time
// on a device, in one stream; two concurrent ones would deadlock.
//
// Formats: FP8 weights and inputs (per tensor or per row, stored input scales; Hopper), or W4A16 with records
// (kernels/w4a16_record.h). The bits are those of add_norm(), quantize_inputs(), matmul(), activate() and
// rope_append() one after the other. Pointers are device pointers, 16-byte aligned (float vectors and `meet`: 8).
// run_fused_decode() queues the kernel and returns at once.
#pragma once

#include "kernels/elementwise_cuda.h"
#include "kernels/operand_matmul_cuda.h"
#include "kernels/w4a16_matmul_cuda.h"
#include "tensor/device.h"

#include <span>

namespace nibble::cuda {

struct FusedProduct {
    // The weight: FP8 codes in `w`, or records in `packed`. All products have the same kind.
    Operand w;              // codes, without tile scales; cols a multiple of 128
    float input_scale = 1;  // scale of the FP8 codes of the input
    PackedMatrix packed;    // cols a multiple of 256; gated: tiles of gate and up alternate (MatmulProblem::gated)
    MatmulFactors factors;  // scales and bias of `packed`
    // The input is the first of these that is given:
    // 1. a row that is there before the kernel starts;
    const std::byte* x = nullptr;  // [cols] BF16
    // 2. RMSNorm of the residual stream, after the pending update was added: the output of the product before, or
    //    FusedDecode::update for the first product;
    const float* norm = nullptr;   // [cols] weights of the norm
    int32_t* nonfinite = nullptr;  // set to 0 if that sum holds a NaN or an infinity; may be null
    // 3. otherwise the activated output of the product before.
    bool activated = false;  // this product's output goes through FusedDecode::activation to the next product only
    bool gated = false;      // rows of a gate, then rows of what the gate multiplies (`packed`: alternating tiles)
    float* y = nullptr;      // [rows] FP32, unless activated; may be null where only the next product reads it
};

struct FusedDecode {
    std::span<const FusedProduct> products;  // at most most_fused_products
    const std::byte* h = nullptr;            // the residual stream, BF16
    const float* update = nullptr;           // FP32 sum to add to h before the first norm; null: none
    std::byte* h_out = nullptr;              // the residual stream after the last norm's sum; not h; may be null
    float eps = 0;
    Activation activation = Activation::silu;
    // Hand-over memory of this call: fused_decode_bytes() bytes, all bits set (the sentinel) when the kernel starts.
    std::byte* between = nullptr;
    // Hand-over memory of the call before, which this call fills with the sentinel again; not `between`; may be null.
    std::byte* used = nullptr;
    int64_t used_bytes = 0;  // fused_decode_bytes() of the call before
    // Rotary embedding and cache append of the last product's y (one token); y itself may then stay unwritten. Null:
    // neither.
    const RopeAppend* rope = nullptr;
    const KvCache* cache = nullptr;
    // Counter of the grid barrier before a rotary embedding whose heads are spread over thread blocks: one word, zero
    // before the first use, shared by all such kernels of a stream.
    uint64_t* meet = nullptr;
};
inline constexpr int most_fused_products = 4;

// Returns true if a kernel exists for these shapes and formats. Reads no pointer.
bool takes_fused_decode(const FusedDecode& decode, const DeviceInfo& device);
int64_t fused_decode_bytes(const FusedDecode& decode);
Status run_fused_decode(const FusedDecode& decode, bool overlap, const DeviceInfo& device, const Stream& stream);

}  // namespace nibble::cuda
