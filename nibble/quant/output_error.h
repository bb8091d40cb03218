// What a linear's outputs lose under calibration text, which is what the weight solvers lower: the energy of (W - Q) x
// over that of W x, summed over the tokens x by the statistics of the inputs. local_hessian knows blocks of 16 inputs
// only, nibble_best weighs tokens by their gradient: each is measured as its solver sees it.
#pragma once

#include "quant/solve.h"

#include <string>

namespace nibble {

struct LayerOutputError {
    std::string module;
    int64_t rows = 0;                          // outputs that were measured, evenly spaced: at most output_error_rows
    double energy = 0, before = 0, after = 0;  // before: with the scales of maxima and nearest codes; after: as solved
    bool operator==(const LayerOutputError&) const = default;
};

inline constexpr int64_t output_error_rows = 32;

// `solved` is what came out for `weight` under `spec`. Nothing is measured (rows 0) without statistics of inputs.
LayerOutputError measure_output_error(std::string module, const MatrixView& weight, const WeightSpec& spec,
                                      const TensorAmax& amax, const LinearStatistics& statistics,
                                      const QuantView& solved, const QuantizeKernels& kernels);

}  // namespace nibble
