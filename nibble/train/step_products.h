// What a trainer asks of the products of a model's linears beyond the products: what belongs to steps, and what a
// checkpoint keeps of them.
#pragma once

#include "base/error.h"
#include "model/cpu/linear_products.h"

#include <string>
#include <vector>

namespace nibble {

struct UnitLine {  // of the table that is printed at the start
    std::string name;
    int64_t layer = 0;
    std::string forward, input_gradient, weight_gradient;
};

class StepProducts : public LinearProducts {
public:
    // A step whose gradient is computed; its rows one after the other; its update was made (else it left no trace).
    virtual void begin_step(int64_t step, int64_t steps) = 0;
    virtual void begin_row(int64_t row, int64_t seq) = 0;
    virtual void end_step() = 0;
    // Between steps: forward passes leave no trace.
    virtual void pause() = 0;

    virtual std::vector<UnitLine> table() const = 0;
    // Whether a row's log-probabilities depend on its neighbours in a batch.
    virtual bool sees_neighbours() const = 0;
    // Histories of scales, directions of inputs: what a checkpoint keeps of a recipe. Error: of another recipe or
    // model.
    virtual std::vector<float> state() const = 0;
    virtual Status set_state(const std::vector<float>& state) = 0;
};

}  // namespace nibble
