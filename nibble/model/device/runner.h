// The loop over the blocks of a model on a GPU, the only one: DeviceModel (a whole model, one step after the other) and
// DeviceWalk (one block, all texts) both queue their layers here.
//
//   residual stream h -> norm -> mixer -> y; the next norm adds y to h and finds a NaN on the way
//
// so that sum and norm are one kernel, or the prologue of the next product. Taps: DeviceStep::observer sees the inputs
// of linears, K and V.
#pragma once

#include "model/device/product_chain.h"

#include <span>

namespace nibble {

// Buffers of the residual stream of a step. Device pointers.
struct DeviceResidual {
    int64_t hidden = 0;
    float eps = 0;
    std::byte* h = nullptr;  // [rows, hidden] BF16, the stream as it comes in
    // [hidden]: of one row, where a product that makes the norm itself leaves the sum; h and `other` then change places
    // from block to block. Null: every norm is a launch of its own, and the stream stays where it is.
    std::byte* other = nullptr;
    std::byte* x = nullptr;        // [padded_rows(rows), hidden] BF16: a mixer's input
    float* y = nullptr;            // [rows, hidden]: a mixer's output
    int32_t* nonfinite = nullptr;  // [layers]: lowered to the first row that holds a NaN after the layer
};

// Queues all layers in order. What comes back is the norm behind them: the caller adds weight and output and queues it,
// which adds the last mixer's y to the stream (AddNorm::h). `chain`: a strategy for one row without an observer, all
// products between two attentions in one launch; null, or more rows: kernel by kernel.
Result<cuda::AddNorm> queue_layers(std::span<const DeviceLayer> layers, const DeviceResidual& residual,
                                   const DeviceProductChain* chain, DeviceStep& step);

}  // namespace nibble
