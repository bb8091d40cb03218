// The error of a linear's outputs on calibration text, which weight solvers reduce: the energy of (W - Q) x relative to
// that of W x, summed over the tokens x through the statistics of the inputs. local_hessian only has statistics of
// blocks of 16 inputs, and nibble_best weights tokens by their gradient; each error uses the statistics of its solver.
#pragma once

#include "quant/solve.h"

#include <string>

namespace nibble {

struct LayerOutputError {
    std::string module;
    int64_t rows = 0;                          // measured outputs (evenly spaced), at most output_error_rows
    double energy = 0, before = 0, after = 0;  // before: scales of maxima, nearest codes; after: as solved
    bool operator==(const LayerOutputError&) const = default;
};

inline constexpr int64_t output_error_rows = 32;

// Measures the error. `solved`: the result for `weight` with `spec`. Without statistics of inputs nothing is measured
// (rows is 0).
LayerOutputError measure_output_error(std::string module, const MatrixView& weight, const WeightSpec& spec,
                                      const TensorAmax& amax, const LinearStatistics& statistics,
                                      const QuantView& solved, const QuantizeKernels& kernels);

}  // namespace nibble
