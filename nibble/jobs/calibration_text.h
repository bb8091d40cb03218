// The text that a job runs the model on, and how it is read.
#pragma once

#include "base/progress.h"
#include "checkpoint/checkpoint.h"

#include <string>
#include <vector>

namespace nibble {

struct CalibrationText {
    std::string file;           // text, JSONL or token ids; empty: none
    std::string range = "max";  // of inputs, keys and values: parse_range_rule()
    int64_t tokens = 32768, sequence = 2048;
    int64_t gradients = 8192;  // of the tokens, those that also go backwards through the model
    bool all_experts = false;  // every expert sees every token
};

// Token ids of `text.file` by the checkpoint's own tokenizer and chat template. A .safetensors file holds them ready:
// input_ids I64 [B, T]. Warns of a text that is shorter than text.tokens.
Result<std::vector<std::vector<int32_t>>> calibration_sequences(const CalibrationText& text,
                                                                const Checkpoint& checkpoint, const JobHooks& hooks);

}  // namespace nibble
