// The job of `nibble logits`: computes the logits of given tokens, for comparisons with other systems.
#pragma once

#include "nibble/error.h"
#include "nibble/hooks.h"
#include "nibble/model_settings.h"

#include <cstdint>
#include <string>

namespace nibble {

// All paths are required.
struct LogitsOptions {
    std::string model;  // folder or .gguf file
    std::string ids;    // a .safetensors file with input_ids, I64 [rows, tokens]
    std::string out;    // the .safetensors file to write, which must not exist: logits, F32 [rows, tokens, vocabulary]
    ModelSettings engine;
};

// The sizes of the logits that were written: F32 [rows, tokens, vocabulary].
struct LogitsReport {
    int64_t rows = 0, tokens = 0, vocabulary = 0;
};

// Computes the logits. A stop leaves no output. Errors by kind: usage; file; checkpoint; shape, if input_ids are not
// I64 [rows, tokens] within the model's vocabulary and context; cancelled.
Result<LogitsReport> compute_logits(const LogitsOptions& options, const JobHooks& hooks);

}  // namespace nibble
