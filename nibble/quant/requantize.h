// Quantizes new values of a checkpoint's weights as the checkpoint itself was quantized.
#pragma once

#include "base/thread_pool.h"
#include "checkpoint/new_weights.h"

#include <memory>
#include <string>

namespace nibble {

// Returns a checkpoint that quantizes the replaced tensors when they are read; all others are those of the base. The
// codes are those of `nibble quantize` with the same recipe on the new values. Input scales and scales of the cache are
// the base's. recipe: a name or file; empty: the settings of the base's nibble.json; a base without quantized tensors
// stays plain then. `weights` and `pool` must outlive the result. Errors: no recipe is known; a recipe that cannot
// quantize without calibration (GPTQ, AWQ ...); a replaced tensor shares its scale with one that is not replaced.
Result<std::shared_ptr<const Checkpoint>> requantize(std::shared_ptr<const NewWeights> weights,
                                                     const std::string& recipe, ThreadPool& pool);

}  // namespace nibble
