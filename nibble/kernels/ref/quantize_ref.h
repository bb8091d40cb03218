// The reference: one element after the other, directly from formats/. Runs on any CPU; all other entries give the same
// bits.
#pragma once

#include "kernels/quantize.h"

namespace nibble::ref {

Scan scan(const MatrixView& panel);
void quantize(const MatrixView& panel, const WeightSpec& spec, const TensorAmax& amax, const QuantSpan& out,
              QuantStats& stats);
void tensor_losses(const MatrixView& panel, const WeightSpec& spec, const TensorAmax& amax,
                   std::span<const float> multipliers, std::span<double> losses);
void decode(const QuantView& panel, float* out);
void measure(const MatrixView& weights, const QuantView& panel, QuantStats& stats);

}  // namespace nibble::ref
