// The loop over the blocks of a model on a GPU. DeviceModel (a whole model per step) and DeviceLayerwise (one block,
// all texts) both queue their layers with it.
//
//   residual stream h -> norm -> mixer -> y; the next norm adds y to h and checks the sum for NaNs
//
// The sum and the norm are therefore one kernel, or the prologue of the next product. DeviceStep::observer receives the
// inputs of linears, and K and V.
#pragma once

#include "model/device/fused_decode.h"

#include <span>

namespace nibble {

// Buffers of the residual stream of a step. Device pointers.
struct DeviceResidual {
    int64_t hidden = 0;
    float eps = 0;
    bool centered = false;   // norms are LayerNorm
    std::byte* h = nullptr;  // [rows, hidden] BF16, the stream as it comes in
    // [hidden]: second buffer of the stream for one row. A product that computes the norm itself leaves the sum there,
    // and `h` and `other` are swapped from block to block. Null: every norm is its own launch, and the stream stays in
    // `h`.
    std::byte* other = nullptr;
    std::byte* x = nullptr;        // [padded_rows(rows), hidden] BF16: a mixer's input
    float* y = nullptr;            // [rows, hidden]: a mixer's output
    int32_t* nonfinite = nullptr;  // [layers]: lowered to the first row that holds a NaN after the layer
};

// Returns true if, with one row, the first product of `layer` computes the sum of the stream and its norm; `before`:
// the previous layer, null for the first.
inline bool norm_inside(const DeviceLayer* before, const DeviceLayer& layer, const InputPlan& plan) {
    return plan.inside && layer.plain_norm() && (!before || before->plain_sum());
}

// Queues all layers in order. Returns the norm after the last layer: the caller adds weight and output and queues it;
// the kernel adds the last mixer's y to the stream (AddNorm::h). `fused_decode`: used for one row without an observer,
// runs all products between two attentions in one launch. If it is null, or with more rows, every kernel is launched
// separately.
Result<cuda::AddNorm> queue_layers(std::span<const DeviceLayer> layers, const DeviceResidual& residual,
                                   const DeviceFusedDecode* fused_decode, DeviceStep& step);

}  // namespace nibble
