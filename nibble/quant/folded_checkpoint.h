// A checkpoint whose matrices are multiplied by row and column scales while they are read; AWQ uses it
// (quant/awq_search.h). Names, shapes and dtypes are the source's; products are rounded to the tensor's dtype.
#pragma once

#include "checkpoint/checkpoint.h"

#include <map>
#include <memory>

namespace nibble {

// Scales of one tensor: w[r][c] * rows[r] * columns[c]. Empty: all ones. A vector has rows of one column. With
// `plus_one`, a vector stores w for a norm that multiplies by 1 + w (gemma3), and 1 + w is scaled.
struct Fold {
    std::vector<float> rows, columns;
    bool plus_one = false;
};
using Folds = std::map<size_t, Fold>;  // by index in Checkpoint::tensors()

// `source` must outlive the result. Errors: a tensor that is not BF16, F16 or F32; scales whose length differs from the
// tensor's.
Result<std::unique_ptr<Checkpoint>> fold_checkpoint(const Checkpoint& source, Folds folds);

}  // namespace nibble
