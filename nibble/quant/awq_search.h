// AWQ-lite over a model: calibration text goes through it block by block, every group of linears that can be scaled
// (awq_groups.h) gets its scale (awq.h), and the scales become factors of tensors (folded_checkpoint.h):
//
//   members and other readers of the same input     columns * s
//   the norm before them                             w / s; where w / s is rounded, s becomes w / rounded: no error
//   or the rows of the linear before them, its bias  / s
//
// The model computes the same function before and after, up to the rounding of BF16 weights that are quantized next.
// Inputs and weights are those of the source throughout: no search sees another's scales. A group whose error no alpha
// makes smaller than scales of 1 do is left alone (Model Optimizer takes the best alpha all the same).
#pragma once

#include "quant/awq_groups.h"
#include "quant/calibrate.h"
#include "quant/folded_checkpoint.h"

namespace nibble {

struct AwqChoice {
    std::string first;  // reader, the group's name
    float alpha = 0;
    double before = 0, after = 0;  // mean squared error of the outputs: with scales of 1, with the chosen ones
    bool taken = false;            // after < before
};

struct AwqResult {
    Folds folds;
    std::vector<AwqChoice> choices;
    std::vector<std::string> warnings;  // what stays unscaled, and why
    std::vector<CalibrationGap> gaps;   // groups whose inputs are zero or never came; they stay unscaled as well
    Json summary() const;  // groups, how many are scaled, what is left of their error, a hash of the scales
};

// Adds one group's scale (per column of its readers, equal within a class) to `folds`. plus_one: the model's norms
// multiply by 1 + w.
Status fold_group(const Checkpoint& source, const AwqGroup& group, bool plus_one, std::vector<float> scale,
                  Folds& folds);

// plan.awq has a value. Errors: those of calibrate; a group that no token reached stays unscaled with a warning.
Result<AwqResult> awq_search(const Checkpoint& source, const Plan& plan,
                             std::span<const std::vector<int32_t>> sequences, const CalibrationOptions& options,
                             ThreadPool& pool, const JobHooks& hooks);

}  // namespace nibble
