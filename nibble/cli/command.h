// The interface of subcommands: each adds its flags to the app and returns the action to run after parsing. Flags are
// stored in one config struct per command. Parsing prints nothing and has no side effects.
#pragma once

#include "base/error.h"

#include <CLI/CLI.hpp>

#include <functional>
#include <string_view>

namespace nibble {

// Result of a command that succeeded.
struct Outcome {
    bool findings = false;  // the command found defects in what it checked: exit status 1 without further output
};

using RunCommand = std::function<Result<Outcome>()>;

inline constexpr std::string_view program_description =
    "nibble: quantizes, trains and serves large language models at low precision, and measures the error";

// Adds all commands. Parsing, help, shell completion and the manual page use this definition.
void add_commands(CLI::App& app, RunCommand& run);

// Each function adds one subcommand; parsing stores the action of the chosen one in `run`.
void add_bench(CLI::App& app, RunCommand& run);
void add_chat(CLI::App& app, RunCommand& run);
void add_completion(CLI::App& app, RunCommand& run);
void add_convert(CLI::App& app, RunCommand& run);
void add_data(CLI::App& app, RunCommand& run);
void add_eval(CLI::App& app, RunCommand& run);
void add_formats(CLI::App& app, RunCommand& run);
void add_generate(CLI::App& app, RunCommand& run);
void add_help(CLI::App& app, RunCommand& run);
void add_import(CLI::App& app, RunCommand& run);
void add_inspect(CLI::App& app, RunCommand& run);
void add_launch(CLI::App& app, RunCommand& run);
void add_logits(CLI::App& app, RunCommand& run);
void add_plan(CLI::App& app, RunCommand& run);
void add_quantize(CLI::App& app, RunCommand& run);
void add_recipes(CLI::App& app, RunCommand& run);
void add_rl(CLI::App& app, RunCommand& run);
void add_search(CLI::App& app, RunCommand& run);
void add_template(CLI::App& app, RunCommand& run);
void add_serve(CLI::App& app, RunCommand& run);
void add_tokenize(CLI::App& app, RunCommand& run);
void add_train(CLI::App& app, RunCommand& run);
void add_verify(CLI::App& app, RunCommand& run);

}  // namespace nibble
