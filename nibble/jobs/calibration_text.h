// Reads the text on which a job runs the model.
#pragma once

#include "base/progress.h"
#include "checkpoint/checkpoint.h"
#include "nibble/calibration_text.h"

#include <vector>

namespace nibble {

// Returns the token ids of `text.file`, made with the checkpoint's tokenizer and chat template, or read from a
// .safetensors file (input_ids I64 [B, T]). Warns if the text is shorter than text.tokens. Errors: a file that cannot
// be read, ids outside the vocabulary.
Result<std::vector<std::vector<int32_t>>> calibration_sequences(const CalibrationText& text,
                                                                const Checkpoint& checkpoint, const JobHooks& hooks);

}  // namespace nibble
