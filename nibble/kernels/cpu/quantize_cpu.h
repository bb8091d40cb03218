// The table entries over vector loops (rows.h): all code per panel, row and tile, compiled for any CPU.
#pragma once

#include "kernels/cpu/rows.h"
#include "kernels/quantize.h"

namespace nibble::cpu {

Scan scan(const RowKernels& k, const MatrixView& panel);
void quantize(const RowKernels& k, const MatrixView& panel, const WeightSpec& spec, const TensorAmax& amax,
              const QuantSpan& out, QuantStats& stats);
void tensor_losses(const RowKernels& k, const MatrixView& panel, const WeightSpec& spec, const TensorAmax& amax,
                   std::span<const float> multipliers, std::span<double> losses);
void decode(const RowKernels& k, const QuantView& panel, float* out);
void measure(const RowKernels& k, const MatrixView& weights, const QuantView& panel, QuantStats& stats);

// Makes a table entry of five functions.
template <const RowKernels& k>
constexpr QuantizeKernels entry(std::string_view name, bool (*supported)()) {
    return {
        name,
        supported,
        [](const MatrixView& panel) { return cpu::scan(k, panel); },
        [](const MatrixView& panel, const WeightSpec& spec, const TensorAmax& amax, const QuantSpan& out,
           QuantStats& stats) { cpu::quantize(k, panel, spec, amax, out, stats); },
        [](const MatrixView& panel, const WeightSpec& spec, const TensorAmax& amax, std::span<const float> multipliers,
           std::span<double> losses) { cpu::tensor_losses(k, panel, spec, amax, multipliers, losses); },
        [](const QuantView& panel, float* out) { cpu::decode(k, panel, out); },
        [](const MatrixView& weights, const QuantView& panel, QuantStats& stats) {
            cpu::measure(k, weights, panel, stats);
        }};
}

}  // namespace nibble::cpu
