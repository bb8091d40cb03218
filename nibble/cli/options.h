// Flags that several commands share, from words to values. Errors list the choices.
#pragma once

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "formats/arithmetic.h"

#include <CLI/CLI.hpp>

#include <string>
#include <string_view>

namespace nibble {

Result<Dialect> parse_dialect(std::string_view word);        // modelopt, compressed-tensors, gguf, plain
Result<Arithmetic> parse_arithmetic(std::string_view word);  // reciprocal, true
Result<Format> parse_format(std::string_view word);          // format_name()s, bf16 for none
Result<int64_t> parse_size(std::string_view word);           // "5GB", "500MB", "1024": decimal units

// The command as typed, from CLI11's parsed options: "nibble quantize SRC -o OUT ...".
std::string command_line_of(const CLI::App& command);

// nibble.json, which travels with every checkpoint nibble writes: who made it, how, and what the recipe wanted.
struct Manifest {
    std::string command_line;
    Json settings = Json::object();
    std::string recipe;
    Json tensors = Json::object();  // to_json(ExpectedFormats), what `nibble verify` holds the checkpoint against
};
std::string to_text(const Manifest& manifest);

}  // namespace nibble
