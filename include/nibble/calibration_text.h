// The text that a job runs a model on, and how it is read.
#pragma once

#include <cstdint>
#include <string>

namespace nibble {

struct CalibrationText {
    std::string file;           // text, JSONL or token ids; empty: none
    std::string range = "max";  // of inputs, keys and values: max, mse, percentile:P
    int64_t tokens = 32768, sequence = 2048;
    int64_t gradients = 8192;  // of the tokens, those that also go backwards through the model
    bool all_experts = false;  // every expert sees every token
};

}  // namespace nibble
