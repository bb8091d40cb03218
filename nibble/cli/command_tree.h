// The commands and flags as data, walked out of the definition that parses them: what shell completion and the manual
// page are made of.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace nibble {

struct FlagEntry {
    std::vector<std::string> names;    // "-o", "--output"; of a positional its name
    std::string value;                 // "TEXT", "INT"; empty: takes none
    std::vector<std::string> choices;  // of the value, where it is one of few (one_of, cli/usage.h)
    std::string standard;              // the value when it is not given
    std::string description;
    bool positional = false, required = false, many = false;
};

struct CommandEntry {
    std::string name;  // "", "quantize", "bench model"
    std::string description, footer;
    std::vector<FlagEntry> flags, positionals;
    std::vector<std::string> subcommands;  // their own words: "model"
};

// The program itself first, then its commands in the order of the help, each before its subcommands.
std::vector<CommandEntry> command_tree(const CLI::App& app);

// Scripts for shells, and the page nibble.1 in the macros of man(7).
std::string bash_completion(const std::vector<CommandEntry>& tree);
std::string zsh_completion(const std::vector<CommandEntry>& tree);
std::string fish_completion(const std::vector<CommandEntry>& tree);
std::string man_page(const std::vector<CommandEntry>& tree);

}  // namespace nibble
