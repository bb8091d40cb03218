// Flags that several commands share.
#pragma once

#include "base/json.h"
#include "jobs/words.h"

#include <CLI/CLI.hpp>

#include <string>
#include <string_view>

namespace nibble {

// Returns the dialect of an output if --format may be omitted: gguf for a name that ends in .gguf. A .gguf name with
// another dialect is a usage error (cli/usage.h), because it would create a folder of that name.
std::string output_format(const std::string& out, const std::string& format);

// Returns one line of JSON for other programs; bytes that are not UTF-8 become U+FFFD.
std::string json_line(const Json& json);

// Flags with the same meaning in all commands. --quiet suppresses progress, notes, and the summary of a job that writes
// files; warnings, errors and requested results are still printed.
CLI::Option* add_threads_flag(CLI::App& command, int& threads, const std::string& what = "0: all cores");
void add_device_flag(CLI::App& command, std::string& device, const std::string& what = "cpu, cuda or cuda:N");
void add_quiet_flag(CLI::App& command, bool& quiet, const std::string& what = "no progress");
void add_json_flag(CLI::App& command, bool& json);
// --partial: the checkpoint may lack weights that its config.json requires.
void add_partial_flag(CLI::App& command, bool& partial);
void add_shard_size_flag(CLI::App& command, std::string& size);
// Adds a flag that selects an implementation; the job checks whether this CPU supports it.
CLI::Option* add_kernels_flag(CLI::App& command, std::string& kernels, const std::string& what);

// Returns the command as typed, from CLI11's parsed options: "nibble quantize SRC -o OUT ...".
std::string command_line_of(const CLI::App& command);

// Returns the same without options that change no byte of the output (--resume, --threads, --quiet ...), for model
// cards.
std::string command_for_card(const CLI::App& command);

}  // namespace nibble
