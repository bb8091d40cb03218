// Reads the text that a job runs the model on.
#pragma once

#include "base/progress.h"
#include "checkpoint/checkpoint.h"
#include "nibble/calibration_text.h"

#include <vector>

namespace nibble {

// Token ids of `text.file` by the checkpoint's own tokenizer and chat template. A .safetensors file holds them ready:
// input_ids I64 [B, T]. Warns of a text that is shorter than text.tokens.
Result<std::vector<std::vector<int32_t>>> calibration_sequences(const CalibrationText& text,
                                                                const Checkpoint& checkpoint, const JobHooks& hooks);

}  // namespace nibble
