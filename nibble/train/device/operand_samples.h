// The samples of a recipe's units (train/operand_sample.h), taken where its products read operands.
#pragma once

#include "kernels/cast_cuda.h"
#include "train/operand_sample.h"

namespace nibble {

class OperandSamples {
public:
    enum Part { inputs, weights, gradients };

    // largest: one number on the device, for the look at a tensor's magnitude.
    OperandSamples(size_t units, float* largest) : units_(units), largest_(largest) {}

    // A step begins: nothing is seen yet. rows: of each operand at most.
    void begin(int64_t rows);
    // x [rows, cols] BF16 on the device, of which `most` rows may be seen; columns: a multiple of 8. given: a delayed
    // or stored scale there, null: none. Waits for the stream. A part that was seen in this step stays: blocks that are
    // computed again show the same.
    Status take(size_t unit, Part part, const cuda::CastSource& x, int64_t most, const CastRule& rule,
                const CastRandom& random, const float* given, const Stream& stream);
    const UnitSample& of(size_t unit) const { return units_[unit]; }

private:
    std::vector<UnitSample> units_;
    float* largest_;
    int64_t rows_ = 0;
};

}  // namespace nibble
