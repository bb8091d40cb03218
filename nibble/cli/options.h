// Flags that several commands share.
#pragma once

#include "base/json.h"
#include "jobs/words.h"

#include <CLI/CLI.hpp>

#include <string>
#include <string_view>

namespace nibble {

// The dialect of an output whose --format may be left out: a name that ends in .gguf is a GGUF file's. A .gguf name for
// another dialect is a usage error (cli/usage.h), which would make a folder of that name.
std::string output_format(const std::string& out, const std::string& format);

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

}  // namespace nibble
