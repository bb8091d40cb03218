// Parses options that are words or sizes, as in the command line and configuration files. Errors are of kind usage and
// list the choices.
#pragma once

#include "checkpoint/checkpoint.h"
#include "formats/arithmetic.h"
#include "model/cpu/model.h"
#include "quant/ranges.h"

#include <string_view>

namespace nibble {

Result<Dialect> parse_dialect(std::string_view word);        // modelopt, compressed-tensors, gguf, plain
Result<Arithmetic> parse_arithmetic(std::string_view word);  // reciprocal, true
Result<Format> parse_format(std::string_view word);          // format_name()s; bf16 for Format::none
Result<RangeRule> parse_range_rule(std::string_view word);   // max, mse, percentile:99.9
Result<SumOrder> parse_sum_order(std::string_view word);     // lanes, tiles

// Returns bytes: "5GB", "500MB", "1024"; "512M" and "512MiB" are multiples of 1024.
Result<int64_t> parse_size(std::string_view word);
Result<int64_t> parse_size_or_zero(std::string_view word);  // also accepts "0"

}  // namespace nibble
