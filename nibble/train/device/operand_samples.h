// Collects the samples of a recipe's units (train/operand_sample.h) where products read their operands.
#pragma once

#include "kernels/cast_cuda.h"
#include "train/operand_sample.h"

namespace nibble {

class OperandSamples {
public:
    enum Part { inputs, weights, gradients };

    // largest: one float in device memory for the largest magnitude of a tensor.
    OperandSamples(size_t units, float* largest) : units_(units), largest_(largest) {}

    // Starts a step and discards earlier samples. rows: maximum per operand.
    void begin(int64_t rows);
    // Samples x [rows, cols] BF16 on the device, at most `most` rows; columns must be a multiple of 8. given: a delayed
    // or stored scale on the device; null: none. Waits for the stream. A part that was sampled in this step is kept,
    // because recomputed blocks have the same values.
    Status take(size_t unit, Part part, const cuda::CastSource& x, int64_t most, const CastRule& rule,
                const CastRandom& random, const float* given, const Stream& stream);
    const UnitSample& of(size_t unit) const { return units_[unit]; }

private:
    std::vector<UnitSample> units_;
    float* largest_;
    int64_t rows_ = 0;
};

}  // namespace nibble
