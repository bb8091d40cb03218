// A checkpoint whose matrices are multiplied by scales of their rows and columns on the way out: what AWQ makes of one
// (quant/awq_folds.h). Names, shapes and dtypes are the source's; products are rounded to the tensor's dtype.
#pragma once

#include "checkpoint/checkpoint.h"

#include <map>
#include <memory>

namespace nibble {

// Of one tensor: w[r][c] * rows[r] * columns[c]. Empty: ones. A vector has rows of one column; with `plus_one` it
// stands for 1 + w (norms of gemma3), and 1 + w is what is multiplied.
struct Fold {
    std::vector<float> rows, columns;
    bool plus_one = false;
};
using Folds = std::map<size_t, Fold>;  // by index in Checkpoint::tensors()

// `source` outlives it. Errors: a tensor that is not BF16, F16 or F32, scales of other lengths than the tensor's.
Result<std::unique_ptr<Checkpoint>> fold_checkpoint(const Checkpoint& source, Folds folds);

}  // namespace nibble
