// A precision recipe as the owner of a trainer sees it: scales of inputs, the table of products, measurements. The
// products themselves are StepProducts on the host and DeviceRecipe on a GPU.
#pragma once

#include "base/error.h"
#include "train/cast_quality.h"
#include "train/train_rules.h"

#include <span>
#include <string>
#include <vector>

namespace nibble {

struct UnitLine {  // a line of the table that is printed at the start
    std::string name;
    int64_t layer = 0;
    std::string forward, input_gradient, weight_gradient;
    int64_t rows = 0, cols = 0;  // shape of the weight; the following three are used by train_flops.h
    double share = 1;            // token_share()
    Fp4Use fp4;
};

class PrecisionRecipe {
public:
    virtual ~PrecisionRecipe() = default;

    // While `hold` is true, updates keep the scales that follow from earlier steps. The first update after it renews
    // them with the maxima of all rows since.
    virtual void hold_scales(bool) {}
    // Returns true if inputs are rounded under stored scales, which a forward pass over some rows must compute before
    // the first step (TrainEngine::calibrate()).
    virtual bool calibrates() const { return false; }
    // Returns these scales for every unit that has one (once for experts that share one); 0: not known yet.
    virtual Result<std::vector<float>> input_scales() const { return std::vector<float>{}; }
    // Error: another number of scales, or a scale that is not positive and finite.
    virtual Status set_input_scales(std::span<const float>) { return fail("there are no scales of inputs"); }

    // Describes the three products of every linear as they are computed.
    virtual std::vector<UnitLine> table() const = 0;
    // watch(true) makes the following steps measure how well rounded operands represent their sources, in the first
    // row. quality() returns the result of the last watched step; empty if nothing is rounded or measured.
    virtual void watch(bool) {}
    virtual std::vector<UnitQuality> quality() const { return {}; }
    // Returns true if a row's log-probabilities depend on other rows of its batch.
    virtual bool sees_neighbours() const = 0;
};

}  // namespace nibble
