// The forward weights of a model in one phase of a precision recipe, computed from its parameters alone. An export in
// training's codes uses it when the trainer's own copies are on a GPU. Units have the order of train/host_recipe.h.
#pragma once

#include "model/cpu/model.h"
#include "model/parameters.h"
#include "train/step_products.h"

#include <memory>
#include <vector>

namespace nibble {

class PhaseWeights : public ForwardWeights {
public:
    // Reads only names and sizes of `blocks`. late: the steps in which TrainPrecision::late_forward applies.
    // input_scales: in the form of StepProducts::input_scales(). Errors: a linear whose weight is not a parameter; too
    // few scales.
    static Result<PhaseWeights> make(std::span<const Block> blocks, const Head& head, const ModelConfig& config,
                                     std::shared_ptr<const Parameters> parameters, const TrainPrecision& precision,
                                     bool late, std::span<const float> input_scales = {});

    size_t units() const override { return units_.size(); }
    ForwardWeight forward_weight(size_t unit) const override { return units_[unit]; }
    // Rounds the current published values. It cannot be used for delayed scales, which no checkpoint stores
    // (TrainedCodes).
    CastOperand forward_operand(size_t unit, ThreadPool& pool) const override;

private:
    Status add(std::span<const Linear> parts, const std::string& head, const UnitRules& rules);

    std::shared_ptr<const Parameters> parameters_;
    std::vector<ForwardWeight> units_;
};

}  // namespace nibble
