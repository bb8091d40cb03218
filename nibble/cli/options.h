// Flags that several commands share, from words to values. Errors list the choices.
#pragma once

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "formats/arithmetic.h"

#include <CLI/CLI.hpp>

#include <filesystem>
#include <string>
#include <string_view>

namespace nibble {

Result<Dialect> parse_dialect(std::string_view word);        // modelopt, compressed-tensors, gguf, plain
Result<Arithmetic> parse_arithmetic(std::string_view word);  // reciprocal, true
Result<Format> parse_format(std::string_view word);          // format_name()s, bf16 for none
Result<int64_t> parse_size(std::string_view word);           // "5GB", "500MB", "1024"; "512M" and "512MiB": of 1024

// "is quantized already (211 tensors, the first in Q4_1)"; empty: it is not.
std::string quantized_text(const Checkpoint& checkpoint);

// The dialect of an output whose --format may be left out: a name that ends in .gguf is a GGUF file's. A .gguf name for
// another dialect is a usage error (cli/usage.h), which would make a folder of that name.
std::string output_format(const std::string& out, const std::string& format);

// Error: `out` lies in the folder that is read, where the next run would take it for the source's own files.
Status refuse_output_in_source(const std::filesystem::path& out, const std::filesystem::path& source);

// One line of JSON for programs; bytes that are not UTF-8 become U+FFFD.
std::string json_line(const Json& json);

// Flags that mean the same wherever they are. --quiet: no progress, no remarks and no summary of a job that writes
// files; warnings, errors and what was asked for still come.
CLI::Option* add_threads_flag(CLI::App& command, int& threads, const std::string& what = "0: all cores");
void add_device_flag(CLI::App& command, std::string& device, const std::string& what = "cpu, cuda or cuda:N");
void add_quiet_flag(CLI::App& command, bool& quiet, const std::string& what = "no progress");
void add_json_flag(CLI::App& command, bool& json);
void add_shard_size_flag(CLI::App& command, std::string& size);
// Forces an implementation; whether this CPU has it is found out when the job begins.
CLI::Option* add_kernels_flag(CLI::App& command, std::string& kernels, const std::string& what);

// The command as typed, from CLI11's parsed options: "nibble quantize SRC -o OUT ...".
std::string command_line_of(const CLI::App& command);

// The same without what changes no byte of the output (--resume, --threads, --quiet ...), for model cards.
std::string command_for_card(const CLI::App& command);

// nibble.json, which travels with every checkpoint nibble writes: who made it, how, and what the recipe wanted.
struct Manifest {
    std::string command_line;
    Json settings = Json::object();
    std::string recipe;
    Json tensors = Json::object();  // to_json(ExpectedFormats), what `nibble verify` holds the checkpoint against
};
std::string to_text(const Manifest& manifest);

}  // namespace nibble
