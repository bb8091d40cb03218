// What a trainer asks of the products of a model's linears beyond the products: what belongs to steps, and what a
// checkpoint keeps of them.
#pragma once

#include "base/error.h"
#include "base/thread_pool.h"
#include "model/cpu/linear_products.h"
#include "train/cast_quality.h"
#include "train/train_operand.h"
#include "train/train_rules.h"

#include <span>
#include <string>
#include <vector>

namespace nibble {

struct UnitLine {  // of the table that is printed at the start
    std::string name;
    int64_t layer = 0;
    std::string forward, input_gradient, weight_gradient;
    int64_t rows = 0, cols = 0;  // of the weight, and with them what train_flops.h counts
    double share = 1;            // token_share()
    Fp4Use fp4;
};

// The weight of one forward product: which parameters it is made of, and how it is rounded in the phase of the run.
struct ForwardWeight {
    struct Part {
        std::string name;  // of the linear
        size_t id = 0;     // of its parameter
        int64_t first_row = 0;
    };
    std::vector<Part> parts;
    int64_t cols = 0;
    UnitRules rules;
    float input_scale = 0;  // of stored inputs; 0: there is none yet
};

// What the rows of a step have shown a recipe that remembers: of several processes the largest magnitudes count, and
// the directions that the process of the first rows has found.
struct StepSeen {
    std::vector<float> largest, directions;
};

// The forward weights that are parameters, and the operand that a product reads (where the rules quantize it).
class ForwardWeights {
public:
    virtual ~ForwardWeights() = default;
    virtual size_t units() const = 0;
    virtual ForwardWeight forward_weight(size_t unit) const = 0;
    virtual CastOperand forward_operand(size_t unit, ThreadPool& pool) const = 0;
};

class StepProducts : public LinearProducts, public ForwardWeights {
public:
    // A step whose gradient is computed; its rows one after the other; its end.
    virtual void begin_step(int64_t step, int64_t steps) = 0;
    virtual void begin_row(int64_t row, int64_t seq) = 0;
    // updated: else the step left no trace.
    virtual void end_step(bool updated) = 0;
    // Updates to come leave scales that follow from earlier steps as they are, until one that does not; its scales
    // count what the rows of all have shown.
    virtual void hold_scales(bool) {}
    // Whether inputs are rounded under stored scales, which a forward pass over some rows makes before the first step:
    // those of before are forgotten, inputs stay BF16 between begin_ and end_calibration().
    virtual bool calibrates() const { return false; }
    virtual void begin_calibration() {}
    virtual void end_calibration() {}
    // They, of every unit that has them (experts that share one: once); 0: none yet. Error: another number of them, or
    // one that is not positive and finite.
    virtual std::vector<float> input_scales() const { return {}; }
    virtual Status set_input_scales(std::span<const float>) { return fail("there are no scales of inputs"); }
    // Of this process's rows so far; set_seen() takes the numbers of another one, as many, in their place.
    virtual StepSeen seen() const { return {}; }
    virtual void set_seen(const StepSeen&) {}
    // Between steps: forward passes leave no trace.
    virtual void pause() = 0;

    virtual std::vector<UnitLine> table() const = 0;
    // Whether the first rows of steps to come are looked at, and what was seen of the last one that was.
    virtual void watch(bool) {}
    virtual std::vector<UnitQuality> quality() const { return {}; }
    // Whether a row's log-probabilities depend on its neighbours in a batch.
    virtual bool sees_neighbours() const = 0;
    // Histories of scales, directions of inputs: what a checkpoint keeps of a recipe. Error: of another recipe or
    // model.
    virtual std::vector<float> state() const = 0;
    virtual Status set_state(const std::vector<float>& state) = 0;
};

}  // namespace nibble
