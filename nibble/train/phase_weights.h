// The forward weights of a model in one phase of a precision recipe, from its parameters alone: what an export in
// training's codes reads where the trainer's own copies lie on a GPU. Units are in the order of train/train_products.h.
#pragma once

#include "model/cpu/model.h"
#include "model/parameters.h"
#include "train/step_products.h"

#include <memory>
#include <vector>

namespace nibble {

class PhaseWeights : public ForwardWeights {
public:
    // Of the blocks names and sizes are read. late: the part of the steps where TrainPrecision::late_forward holds.
    // input_scales: as StepProducts::input_scales() has them. Error: a linear whose weight is no parameter; too few
    // scales.
    static Result<PhaseWeights> make(std::span<const Block> blocks, const Head& head, const ModelConfig& config,
                                     std::shared_ptr<const Parameters> parameters, const TrainPrecision& precision,
                                     bool late, std::span<const float> input_scales = {});

    size_t units() const override { return units_.size(); }
    ForwardWeight forward_weight(size_t unit) const override { return units_[unit]; }
    // Of the published values as they are now. Not of delayed scales, which no checkpoint holds (TrainedCodes).
    CastOperand forward_operand(size_t unit, ThreadPool& pool) const override;

private:
    Status add(std::span<const Linear> parts, const std::string& head, const UnitRules& rules);

    std::shared_ptr<const Parameters> parameters_;
    std::vector<ForwardWeight> units_;
};

}  // namespace nibble
