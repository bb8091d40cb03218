// The text on which a job runs a model, and how it is used.
#pragma once

#include <cstdint>
#include <string>

namespace nibble {

// Options of a job that reads text. Token counts refer to the checkpoint's own tokenizer.
struct CalibrationText {
    std::string file;  // plain text, JSONL or token ids (.safetensors with input_ids, I64 [sequences, tokens]); empty:
                       // no text
    std::string range = "max";  // how the range of inputs, keys and values is chosen: max, mse, percentile:P
    int64_t tokens = 32768, sequence = 2048;
    int64_t gradients = 8192;  // number of tokens that also go through the backward pass
    bool all_experts = false;  // every expert observes every token
};

}  // namespace nibble
