// How a subcommand plugs in: it adds its flags to the app and hands back what to do once they are parsed. Flags land in
// one config struct per command; parsing prints nothing and does nothing.
#pragma once

#include "base/error.h"

#include <CLI/CLI.hpp>

#include <functional>
#include <string_view>

namespace nibble {

// What main returns besides failure (1) and wrong usage (2).
struct Outcome {
    bool findings =
        false;  // the command ran, and what it looked at is not in order: exit status 1, nothing more printed
};

using RunCommand = std::function<Result<Outcome>()>;

inline constexpr std::string_view program_description =
    "nibble: takes large language models from BF16 to four bits and proves what was lost";

// All of them: the definition that parsing, help, shell completion and the man page are made from.
void add_commands(CLI::App& app, RunCommand& run);

// Each adds one subcommand; the chosen one's action is stored in `run`.
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
void add_logits(CLI::App& app, RunCommand& run);
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
