// --calib and its companions: what calibration text a command was given, and how it is looked at.
#pragma once

#include "checkpoint/checkpoint.h"
#include "quant/calibrate.h"

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace nibble {

struct CalibrationFlags {
    std::string file;  // text, JSONL or token ids; empty: none
    std::string range = "max";
    int64_t tokens = 32768, sequence = 2048, gradients = 8192;
    bool all_experts = false;
};

void add_calibration_flags(CLI::App& command, CalibrationFlags& flags);
// In a callback of CLI11: a companion without --calib is a usage error (cli/usage.h).
void check_calibration_flags(const CLI::App& command, const CalibrationFlags& flags);

// "max", "mse", "percentile:99.9"
Result<RangeRule> parse_range_rule(std::string_view word);

// Token ids of `flags.file` by the checkpoint's own tokenizer and chat template. A .safetensors file holds them ready:
// input_ids I64 [B, T]. Warns of a text that is shorter than --calib-tokens.
Result<std::vector<std::vector<int32_t>>> calibration_sequences(const CalibrationFlags& flags,
                                                                const Checkpoint& checkpoint, const JobHooks& hooks);

}  // namespace nibble
