// Applies AWQ-lite to a model. Calibration text goes through the model block by block. Every group of linears that can
// be scaled (awq_groups.h) gets its scale (awq.h), and the scales become factors of tensors (folded_checkpoint.h):
//
//   members and other readers of the same input      columns * s
//   the norm before them                             w / s; if w / s must be rounded, s becomes w / rounded (no error)
//   or the rows of the linear before them, its bias  / s
//
// The model computes the same function before and after, up to the rounding of BF16 weights that are quantized
// afterwards. Every search uses the source's inputs and weights, without the scales of other groups. A group stays
// unscaled if no alpha reduces its error below that with scales of 1 (Model Optimizer uses the best alpha in any case).
#pragma once

#include "quant/awq_groups.h"
#include "quant/calibrate.h"
#include "quant/folded_checkpoint.h"

namespace nibble {

struct AwqChoice {
    std::string first;  // name of the group: its first reader
    float alpha = 0;
    double before = 0, after = 0;  // mean squared error of the outputs, with scales of 1 and with the chosen scales
    bool taken = false;            // after < before: the scales are used
};

struct AwqResult {
    Folds folds;
    std::vector<AwqChoice> choices;
    std::vector<std::string> warnings;  // linears that stay unscaled, with the reason
    std::vector<CalibrationGap> gaps;   // groups whose inputs are zero or were never seen; they stay unscaled
    Json summary() const;               // number of groups, of scaled groups, the remaining error, a hash of the scales
};

// Adds one group's scale (per column of its readers, equal within a class) to `folds`. plus_one: the model's norms
// multiply by 1 + w. Error: a tensor cannot be read.
Status fold_group(const Checkpoint& source, const AwqGroup& group, bool plus_one, std::vector<float> scale,
                  Folds& folds);

// Searches the scales of all groups. Requires plan.awq. Errors: those of calibrate(). A group that no token reached
// stays unscaled, with a warning.
Result<AwqResult> awq_search(const Checkpoint& source, const Plan& plan,
                             std::span<const std::vector<int32_t>> sequences, const CalibrationOptions& options,
                             ThreadPool& pool, const JobHooks& hooks);

}  // namespace nibble
