// The commands and flags as data, collected from the definition that parses them. Used for shell completion and the
// manual page.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace nibble {

struct FlagEntry {
    std::vector<std::string> names;    // "-o", "--output"; for a positional argument its name
    std::string value;                 // type of the value: "TEXT", "INT"; empty: no value
    std::vector<std::string> choices;  // possible values, if there are few (one_of, cli/usage.h)
    std::string standard;              // default value
    std::string description;
    bool positional = false, required = false, many = false;
};

struct CommandEntry {
    std::string name;  // "", "quantize", "bench model"
    std::string description, footer;
    std::vector<FlagEntry> flags, positionals;
    std::vector<std::string> subcommands;  // last words of their names: "model"
};

// Returns the program itself, then its commands in the order of the help, each followed by its subcommands.
std::vector<CommandEntry> command_tree(const CLI::App& app);

// Return scripts for shells, and the manual page nibble.1 in the macros of man(7).
std::string bash_completion(const std::vector<CommandEntry>& tree);
std::string zsh_completion(const std::vector<CommandEntry>& tree);
std::string fish_completion(const std::vector<CommandEntry>& tree);
std::string man_page(const std::vector<CommandEntry>& tree);

}  // namespace nibble
