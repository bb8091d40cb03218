// The interface between a trainer and the products of a model's linears, in addition to the products themselves: the
// begin and end of steps, and the state for checkpoints.
#pragma once

#include "base/error.h"
#include "base/thread_pool.h"
#include "model/cpu/linear_products.h"
#include "train/precision_recipe.h"
#include "train/train_operand.h"

#include <span>
#include <string>
#include <vector>

namespace nibble {

// The weight of one forward product: its parameters, and how it is rounded in the current phase of the run.
struct ForwardWeight {
    struct Part {
        std::string name;  // name of the linear
        size_t id = 0;     // id of its parameter
        int64_t first_row = 0;
    };
    std::vector<Part> parts;
    int64_t cols = 0;
    UnitRules rules;
    float input_scale = 0;  // scale of stored inputs; 0: not known yet
};

// Statistics of a step's rows for recipes with memory: the largest magnitudes (over all processes), and the directions
// of inputs (from the process with the first rows).
struct StepSeen {
    std::vector<float> largest, directions;
};

// The forward weights of a model, and the rounded operand that a product reads (if the rules quantize it).
class ForwardWeights {
public:
    virtual ~ForwardWeights() = default;
    virtual size_t units() const = 0;
    virtual ForwardWeight forward_weight(size_t unit) const = 0;
    virtual CastOperand forward_operand(size_t unit, ThreadPool& pool) const = 0;
};

class StepProducts : public LinearProducts, public ForwardWeights, public PrecisionRecipe {
public:
    // Calls around a step with a gradient: its begin, each of its rows in order, its end.
    virtual void begin_step(int64_t step, int64_t steps) = 0;
    virtual void begin_row(int64_t row, int64_t seq) = 0;
    // updated: false if the step was skipped; it leaves no trace then.
    virtual void end_step(bool updated) = 0;
    // Around the forward passes of a calibration: begin_calibration() clears the scales of inputs, which stay BF16
    // until end_calibration().
    virtual void begin_calibration() {}
    virtual void end_calibration() {}
    // Returns the statistics of this process's rows so far. set_seen() replaces them with those of another process,
    // which have the same size.
    virtual StepSeen seen() const { return {}; }
    virtual void set_seen(const StepSeen&) {}
    // Between steps: forward passes no longer change statistics.
    virtual void pause() = 0;

    // The state of a recipe for checkpoints: histories of scales, directions of inputs. set_state() fails for another
    // recipe or model.
    virtual std::vector<float> state() const = 0;
    virtual Status set_state(const std::vector<float>& state) = 0;
};

}  // namespace nibble
